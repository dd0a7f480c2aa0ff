"""``dflashctl keys``: who may use the daemon from elsewhere. Works on files; needs no daemon."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ...protocol.key_file import KeyFile, Z85Key, key_file_text, new_pair
from ...protocol.paths import state_dir
from ..config.configuration import keys_dir
from ..config.file import load
from ..errors import DaemonError
from ..exit_statuses import EXIT_OK, EXIT_REFUSED
from ..keys.client_keys import allow, client_keys, revoke
from ..keys.http_keys import http_keys, new_http_key, revoke_http_key
from ..keys.key_name import checked_name
from ..keys.server_key import server_key
from .looks import write_json
from .table import Table
from .tables import show as show_parts


def keys(options: argparse.Namespace) -> int:
    """Carry out one action on the keys."""
    try:
        return ACTIONS[options.action](options, folder_of(options))
    except DaemonError as error:
        sys.stderr.write(f"dflashctl: {error}\n")
        return EXIT_REFUSED


def folder_of(options: argparse.Namespace) -> Path:
    """Where the daemon meant by the options keeps its keys."""
    return load(options.config).keys_dir if options.config else keys_dir(state_dir())


def new(options: argparse.Namespace, folder: Path) -> int:
    """Make a key, and let it in; or make one for a daemon elsewhere."""
    name = checked_name(options.name)
    if options.http:
        key = new_http_key(folder, name)
        sys.stdout.write(f"{key}\n")
        sys.stderr.write("dflashctl: this is the only time that the key is shown\n")
        return EXIT_OK
    public, secret = new_pair()
    server = server_of(options, folder)
    path: Path = options.out or Path(f"{name}.key")
    text = key_file_text(KeyFile(name=name, server=server, public=public, secret=secret))
    write_new(path, text)
    if options.server:
        sys.stdout.write(f"{path} is written; what lets it in at the daemon is\n")
        sys.stdout.write(f"  dflashctl keys allow {name} '{public}'\n")
        return EXIT_OK
    try:
        _ = allow(folder, name, public, options.role)
    except BaseException:
        path.unlink()
        raise
    sys.stdout.write(f"{path} is written: move it to the client, and keep no copy\n")
    return EXIT_OK


def server_of(options: argparse.Namespace, folder: Path) -> str:
    """The public key of the daemon that a new key is for."""
    if not options.server:
        return server_key(folder).public
    try:
        return msgspec.convert(options.server, Z85Key)
    except msgspec.ValidationError as error:
        raise DaemonError("a daemon's public key is what `dflashctl keys list` shows") from error


def write_new(path: Path, text: str) -> None:
    """Write a secret to a file that was not there. Raises DaemonError."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "w") as file:
                file.write(text)
        except BaseException:
            path.unlink()  # half a key is none, and would be in the way of the next try
            raise
    except FileExistsError as error:
        raise DaemonError(
            f"{path} is there already: move it away, or name another file with --out"
        ) from error
    except OSError as error:
        raise DaemonError(f"{path} cannot be written: {error.strerror}") from error


def let_in(options: argparse.Namespace, folder: Path) -> int:
    """Let in a key that was made elsewhere."""
    key = allow(folder, options.name, options.public, options.role)
    sys.stdout.write(f"{key.name} is allowed as {key.role}\n")
    return EXIT_OK


def put_out(options: argparse.Namespace, folder: Path) -> int:
    """Let a key in no more."""
    key = (revoke_http_key if options.http else revoke)(folder, options.name)
    sys.stdout.write(f"{key.name} is revoked; a running dflashd cuts its connections at once\n")
    return EXIT_OK


def show(options: argparse.Namespace, folder: Path) -> int:
    """List all keys; nothing secret is shown."""
    server, clients, http = server_key(folder).public, client_keys(folder), http_keys(folder)
    if options.json:
        told = [{"name": key.name, "added_unix_s": key.added_unix_s} for key in http]
        write_json({"server": server, "clients": clients, "http": told})
        return EXIT_OK
    rows = [(key.name, key.role, when(key.added_unix_s), key.public) for key in clients]
    rows += [(key.name, "http", when(key.added_unix_s), "") for key in http]
    listed = [Table(("KEY", "ROLE", "ADDED", "PUBLIC KEY"), rows)] if rows else []
    show_parts(f"this daemon's public key is {server}\n", *listed)
    return EXIT_OK


def when(unix_s: float) -> str:
    """A day for a person."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")


ACTIONS = {"new": new, "allow": let_in, "revoke": put_out, "list": show}
