"""Files that only their owner can read: written whole or not at all, not read when open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path

from ..directories import make_private
from ..errors import UnsafeFile

LOCK_NAME = ".lock"


def read_private(path: Path) -> bytes | None:
    """A file's content; None if it is not there. Raises UnsafeFile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnsafeFile(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFile(f"{path} is not a file")
        if status.st_uid != os.geteuid():
            raise UnsafeFile(f"{path} belongs to another user; keys of others are not used")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise UnsafeFile(f"{path} is open to other users: renew its keys, or `chmod 600` it")
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Put a file in its place in one step. Raises UnsafeFile."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnsafeFile(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def changing(folder: Path) -> Generator[None]:
    """One change of a folder's files at a time, whoever makes it."""
    make_private(folder)
    with (folder / LOCK_NAME).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
