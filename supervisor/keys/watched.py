"""A file of keys, read again whenever it changed: what is revoked is out at the next look."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, final

from ..errors import UnsafeFile

K = TypeVar("K")


@final
class WatchedKeys(Generic[K]):
    """The keys in one file: none if it cannot be used, and then ``problem`` says why."""

    def __init__(self, path: Path, read: Callable[[Path], tuple[K, ...]]) -> None:
        self._path = path
        self._read = read
        self._seen: tuple[int, ...] | None = None
        self._looked = False
        self.keys: tuple[K, ...] = ()
        self.problem = ""

    def look(self) -> bool:
        """Read the file if it is not the one that was read last; True if it was not."""
        seen = self._stamp()
        if self._looked and seen == self._seen:
            return False
        self._looked, self._seen = True, seen
        try:
            self.keys, self.problem = self._read(self._path.parent), ""
        except UnsafeFile as error:
            self.keys, self.problem = (), str(error)
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
