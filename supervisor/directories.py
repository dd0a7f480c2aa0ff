"""The daemon's directories: private, ours, and free of what a dead daemon left."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from .errors import UnsafeDirectory


def make_private(path: Path) -> None:
    """Make a directory only we can enter, or check that it is one. Raises UnsafeDirectory."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if wrong := flaw(path):
            raise UnsafeDirectory(wrong)
        if is_open(path.lstat()):
            path.chmod(0o700)
    except OSError as error:
        raise UnsafeDirectory(f"{path} cannot be used: {error}") from error


def flaw(path: Path) -> str:
    """Why what is there cannot be made a private directory, and what to do. Raises OSError."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no directory"
        return f"{path} is {what}; a directory is needed: move it away, or choose another"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to another user; choose another directory"
    if is_open(status) and not path.name.startswith("dflashd") and any(path.iterdir()):
        # It may be a directory that others need, named here by mistake.
        return (
            f"{path} is open to other users and holds other files: "
            f"give dflashd a directory of its own, or `chmod 700 {path}`"
        )
    return ""


def is_open(status: os.stat_result) -> bool:
    """Whether others than the owner may do anything with it."""
    return bool(stat.S_IMODE(status.st_mode) & 0o077)


def remove_sockets(paths: Iterable[Path]) -> list[Path]:
    """Remove socket files; only the holder of the directory's lock may. Returns those removed."""
    removed: list[Path] = []
    for path in paths:
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UnsafeDirectory(f"{path} is not a socket; move it away")
            path.unlink()
        except FileNotFoundError:
            continue
        removed.append(path)
    return removed
