"""Files that only their owner can read: written whole or not at all, not read when open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ..directories import make_private
from ..errors import UnsafeFile

T = TypeVar("T")

LOCK_NAME = ".lock"
LOCK_S = 10.0
"""A change takes milliseconds; who takes longer hangs, or was suspended on a terminal."""

LOCK_LOOK_S = 0.02


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
        try:
            return file.read()
        except OSError as error:  # a disk that fails, a server that is gone
            raise UnsafeFile(f"{path} cannot be read: {error.strerror}") from error


def read_value(path: Path, kind: type[T]) -> T | None:
    """What a file holds, checked; None if it is not there. Raises UnsafeFile."""
    content = read_private(path)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise UnsafeFile(f"{path} cannot be used: {error}") from error


def write_value(path: Path, value: object) -> None:
    """Put a file that holds ``value`` in its place in one step. Raises UnsafeFile."""
    content = msgspec.json.encode(value)
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
    """One change of a folder's files at a time, whoever makes it. Raises UnsafeFile."""
    make_private(folder)
    path = folder / LOCK_NAME
    try:
        lock = path.open("ab")
    except OSError as error:
        raise UnsafeFile(f"{path} cannot be used: {error.strerror}") from error
    with lock:
        _take(lock, path)
        yield


def _take(lock: IO[bytes], path: Path) -> None:
    end_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= end_s:
                raise UnsafeFile(
                    f"{path} has been locked for {LOCK_S:.0f} s: another process changes keys and "
                    "does not end (`fuser` or `lsof` with this file shows which)"
                ) from error
            time.sleep(LOCK_LOOK_S)
        except OSError as error:
            raise UnsafeFile(f"{path} cannot be locked: {error.strerror}") from error
        else:
            return
