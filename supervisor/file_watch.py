"""Whether a file has changed since it was last read, and whoever writes it has let go of it."""

from __future__ import annotations

from pathlib import Path
from typing import final

Stamp = tuple[int, int, int]


@final
class FileWatch:
    """Compares what the file system says of a file between two looks; reads nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read: Stamp | None = None
        self._seen: Stamp | None = None
        self.read_now()

    def read_now(self) -> None:
        """The file is about to be read: what is there now is known."""
        self._read = self._seen = self._stamp()

    def has_settled_on_another(self) -> bool:
        """True when two looks in a row see the same file, and it is not the one that was read.

        A file that is missing has not changed: editors put the new one in its place.
        """
        seen, self._seen = self._seen, self._stamp()
        return self._seen is not None and self._seen == seen and self._seen != self._read

    def _stamp(self) -> Stamp | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()  # of what a link points to: links are changed in one step
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)
