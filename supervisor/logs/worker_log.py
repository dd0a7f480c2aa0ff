"""One worker's log: the worker appends to it, whatever we do; we bound it, and read it.

The file is cut where it is (its end is copied aside, then it is truncated), not renamed: a worker
appends by ``O_APPEND``, so it needs to know nothing, is never held up, and cannot keep a renamed
file growing. That holds for one that hangs, for native code, and for what it has started itself.
What is written in the microseconds between the last look and the cut is lost.
"""

from __future__ import annotations

import os
import threading
from io import FileIO
from pathlib import Path
from typing import final
from urllib.parse import quote

from msgspec import Struct

BLOCK_BYTES = 256 * 1024
CATCH_UP_ROUNDS = 20
"""How often the copy runs after a worker that writes meanwhile, before the rest is given up."""

TAIL_BYTES = 4096
TAIL_LINES = 8


def log_path(log_dir: Path, worker: str) -> Path:
    """Where a worker's log is; a name with slashes stays one file."""
    return log_dir / f"{quote(worker, safe='')}.log"


class Extent(Struct, frozen=True):
    """Positions count from the first byte we know of: the older file holds [begin, end), the
    other one begins at ``middle``; what was between is lost.
    """

    begin: int
    end: int
    middle: int


@final
class WorkerLog:
    """A log of two files, the older and the one written to, seen as one run of bytes.

    Its owner reads it on the loop; one other thread may cut it meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_bytes = 0
        """Bytes that were cut off without a copy: a worker outran us, or the disk is full."""
        self.older = path.with_name(path.name + ".1")
        """What was cut off."""
        self._aside = path.with_name(path.name + ".new")
        self._lock = threading.Lock()
        older_bytes = size_of(self.older)
        self._extent = Extent(0, older_bytes, older_bytes)
        self._started_at = self._extent.middle

    @property
    def begin(self) -> int:
        """The position of the oldest byte that is kept."""
        return self._extent.begin

    @property
    def end(self) -> int:
        """The position behind the last byte."""
        with self._lock:
            return self._extent.middle + size_of(self.path)

    @property
    def older_bytes(self) -> int:
        """Size of what was put aside."""
        return size_of(self.older)

    def open(self) -> int:
        """Open for a new process and return the descriptor. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        self._started_at = self.end
        return descriptor

    def read(self, position: int, limit: int) -> tuple[int, bytes]:
        """At most ``limit`` bytes from ``position``, or from the next one there is, and which.

        Raises OSError, but not for a file that is not there.
        """
        with self._lock:
            extent = self._extent
            position = max(position, extent.begin)
            data = b""
            if position < extent.end:
                data = read_at(self.older, position - extent.begin, limit)
            if not data:  # behind it, or it was removed
                position = max(position, extent.middle)
            if position + len(data) >= extent.middle:
                offset = position + len(data) - extent.middle
                data += read_at(self.path, offset, limit - len(data))
            return position, data

    def tail(self) -> str:
        """The last lines of the last process, made printable; empty if there are none."""
        try:
            _, data = self.read(max(self._started_at, self.end - TAIL_BYTES), TAIL_BYTES)
        except OSError:
            return ""
        lines = data.decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join("".join(c if c.isprintable() else "?" for c in text) for text in lines)

    def cut(self, keep_bytes: int) -> None:
        """Put the last ``keep_bytes`` aside and empty the file. Raises OSError, emptied even so."""
        begin = max(0, size_of(self.path) - keep_bytes)
        end = begin
        try:
            with (
                self.path.open("r+b", buffering=0) as file,
                created(self._aside) as copy,
            ):
                end = caught_up(file.fileno(), copy.fileno(), end, BLOCK_BYTES)
                with self._lock:
                    end = caught_up(file.fileno(), copy.fileno(), end, 0)
                    self._truncate(file.fileno(), kept=(begin, end))
                    self._aside.replace(self.older)
        except OSError:
            self._aside.unlink(missing_ok=True)
            self.drop()
            raise

    def shorten(self, keep_bytes: int) -> None:
        """Keep the end of an older file that a flood made longer than that. Raises OSError."""
        begin = max(0, size_of(self.older) - keep_bytes)
        try:
            with self.older.open("rb") as file, created(self._aside) as copy:
                _ = copied(file.fileno(), copy.fileno(), begin)
            with self._lock:
                self._aside.replace(self.older)
                extent = self._extent
                self._extent = Extent(extent.begin + begin, extent.end, extent.middle)
        except OSError:
            self._aside.unlink(missing_ok=True)
            self.older.unlink(missing_ok=True)
            raise

    def drop(self) -> None:
        """Empty the log without a copy. Raises OSError."""
        with self._lock, self.path.open("r+b", buffering=0) as file:
            self.older.unlink(missing_ok=True)
            self._truncate(file.fileno(), kept=(0, 0))

    def remove(self, path: Path) -> None:
        """Remove one of the files of a worker that does not run. Raises OSError."""
        with self._lock:
            extent, size = self._extent, size_of(self.path)
            path.unlink(missing_ok=True)
            if path == self.older:
                self._extent = Extent(extent.middle, extent.middle, extent.middle)
            else:
                self._extent = Extent(extent.begin, extent.end, extent.middle + size)

    def _truncate(self, descriptor: int, kept: tuple[int, int]) -> None:
        size = os.fstat(descriptor).st_size
        os.ftruncate(descriptor, 0)
        origin = self._extent.middle
        begin, end = kept
        self.lost_bytes += size - end
        self._extent = Extent(origin + begin, origin + end, origin + size)


def created(path: Path) -> FileIO:
    """An empty file that only we can read. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "wb")


def size_of(path: Path) -> int:
    """A file's size; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_at(path: Path, offset: int, limit: int) -> bytes:
    """At most ``limit`` bytes of a file; none if there is no file. Raises OSError."""
    try:
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), limit, offset)
    except FileNotFoundError:
        return b""


def caught_up(source: int, target: int, begin: int, margin_bytes: int) -> int:
    """Copy until no more than ``margin_bytes`` came meanwhile; return how far. Raises OSError."""
    for _ in range(CATCH_UP_ROUNDS):
        before, begin = begin, copied(source, target, begin)
        if begin - before <= margin_bytes:
            break
    return begin


def copied(source: int, target: int, begin: int) -> int:
    """Copy from ``begin`` to where the end is now; return how far. Raises OSError."""
    end = os.fstat(source).st_size
    while begin < end and (block := os.pread(source, min(end - begin, BLOCK_BYTES), begin)):
        view = memoryview(block)
        while view:
            view = view[os.write(target, view) :]
        begin += len(block)
    return begin
