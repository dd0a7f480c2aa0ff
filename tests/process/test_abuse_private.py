"""Other users of the machine: nothing of the daemon's is theirs to open, read or replace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflashd.supervisor.keys.client_keys import allow
from dflashd.supervisor.keys.http_keys import new_http_key
from dflashd.supervisor.keys.server_key import server_key

from .daemon_process import DaemonProcess

NOBODY = 65534
AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            with socket.socket(socket.AF_UNIX) as own:
                own.connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            open(path).close()
        print("open", path)
    except (PermissionError, FileNotFoundError):  # what cannot be entered is not even there
        pass
    try:
        os.rename(path, path + ".stolen")
        print("moved", path)
    except (PermissionError, FileNotFoundError):
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_opens_nothing(make_daemon: Callable[..., DaemonProcess]) -> None:
    """Another uid can neither connect to a socket nor read a log, lock, registry or key."""
    daemon = make_daemon({"a": {}})
    daemon.home.chmod(0o755)  # as a home directory may be: our own directories must hold
    keys = daemon.state_dir / "keys"
    _ = server_key(keys)
    _ = new_http_key(keys, "app")
    _ = allow(keys, "app", server_key(keys).public, "request")
    with daemon.client() as client:
        assert client.generate("a", "x").wait().tokens
    paths = [daemon.runtime_dir, daemon.state_dir]
    for folder in (daemon.runtime_dir, daemon.state_dir):
        paths += sorted(folder.rglob("*"))
    names = {path.name for path in paths}
    assert {"requests.sock", "control.sock", "workers.sock", "server.json", "a.log"} <= names
    for path in paths:
        assert path.lstat().st_mode & 0o077 == 0 or not path.is_dir(), path
    tried = subprocess.run(
        [sys.executable, "-c", AS_NOBODY.format(nobody=NOBODY), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert tried.stdout == "", tried.stdout
    assert daemon.status().state == "serving"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
@pytest.mark.parametrize("what", ["runtime_dir", "state_dir", "keys"])
def test_a_directory_of_another_user_is_not_used(short_dir: Path, what: str) -> None:
    """A directory that somebody else owns, and could fill, stops the daemon with a sentence."""
    state = short_dir / "state"
    theirs = {"runtime_dir": short_dir / "run", "state_dir": state, "keys": state / "keys"}[what]
    state.mkdir(mode=0o700)
    theirs.mkdir(mode=0o700, exist_ok=True)
    os.chown(theirs, NOBODY, NOBODY)
    config = short_dir / "config.toml"
    config.write_text(
        f'[daemon]\nruntime_dir = "{short_dir}/run"\nstate_dir = "{state}"\n'
        '[tcp]\nlisten = ["tcp://127.0.0.1:1"]\n'
    )
    ended = subprocess.run(
        [sys.executable, "-m", "dflashd.supervisor.serve", "serve", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "belongs to another user" in ended.stderr


@pytest.mark.parametrize("name", ["server.json", "clients.json", "http.json"])
def test_a_link_in_place_of_a_key_file_is_not_followed(short_dir: Path, name: str) -> None:
    """A key file that is a link to another file is refused, not read through."""
    from dflashd.supervisor.errors import UnsafeFile
    from dflashd.supervisor.keys.client_keys import client_keys
    from dflashd.supervisor.keys.http_keys import http_keys

    (short_dir / name).symlink_to("/etc/hostname")
    read = {"server.json": server_key, "clients.json": client_keys, "http.json": http_keys}[name]
    with pytest.raises(UnsafeFile):
        read(short_dir)
