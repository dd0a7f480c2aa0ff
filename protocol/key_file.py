"""The file a client of a remote daemon proves itself with; made by ``dflashctl keys new``."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import zmq
from msgspec import Meta, Struct

from .errors import DflashError, ErrorCode

Z85Key = Annotated[str, Meta(pattern=r"^[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}$")]
"""A CURVE key of 32 bytes as ZeroMQ writes it (RFC 32); none of the characters needs escaping."""


class KeyFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's key pair, and the public key of the one daemon that it speaks to."""

    name: str
    server: Z85Key
    public: Z85Key
    secret: Z85Key


def new_pair() -> tuple[str, str]:
    """A new key pair: public and secret half."""
    while True:
        public, secret = (half.decode() for half in zmq.curve_keypair())
        if not public.startswith("-"):  # on a command line it would be taken for an option
            return public, secret


def read_key_file(path: Path) -> KeyFile:
    """Read a key file that nobody else may read. Raises DflashError(bad_request)."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise _unusable(path, f"others may read it: `chmod 600 {path}`")
            return msgspec.convert(tomllib.load(file), KeyFile)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except (ValueError, msgspec.ValidationError) as error:
        raise _unusable(path, f"it is no key file of dflashd ({error})") from error


def key_file_text(key: KeyFile) -> str:
    """The file's content."""
    lines = (f'{name} = "{getattr(key, name)}"' for name in KeyFile.__struct_fields__)
    head = f"# A key to a dflashd, for {key.name}. Whoever can read this file can use the daemon."
    return "\n".join((head, *lines)) + "\n"


def _unusable(path: Path, why: str) -> DflashError:
    return DflashError(ErrorCode.bad_request, f"the key file {path} cannot be used: {why}")
