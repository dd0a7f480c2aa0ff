"""Room on disk: what lies under the shared root, whose it is, and who may write where.

Several processes share a root. A namespace has one writer, who holds its lock; room is made under
the root's lock. Locks are ``flock``: they end with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .eviction import StoredFile, files_to_remove
from .snapshot_file import SUFFIX

WRITER_LOCK = "writer.lock"
ROOT_LOCK = "root.lock"
OWNER = "identity.json"
"""In an identity's directory: which model it is of."""


_held_here: set[tuple[int, int]] = set()
"""Device and inode of the locks that this process holds. One forked from it holds none itself."""

os.register_at_fork(after_in_child=_held_here.clear)


@final
class FileLock:
    """An advisory lock that is held until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._file = (0, 0)
        self.missed_to_us = False
        """Whether it was this very process that had it when it was last asked for."""

    @property
    def held(self) -> bool:
        """Whether it is ours."""
        return self._fd is not None

    def take(self, *, wait: bool = False) -> bool:
        """Take it if it is free (or wait for it); False if somebody else has it."""
        if self._fd is not None:
            return True
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            self.missed_to_us = _file(fd) in _held_here
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._file = fd, _file(fd)
        _held_here.add(self._file)
        return True

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._fd is not None:
            _held_here.discard(self._file)
            os.close(self._fd)
            self._fd = None


def _file(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of one namespace's writer. ``configured``: names of models, if they are known."""

    root: Path
    namespace: Path
    model_bytes: int
    root_bytes: int
    configured: frozenset[str] | None = None

    def make_room(self, size_bytes: int) -> int:
        """Remove files until ``size_bytes`` more fit both limits; how many were removed.

        Raises OSError.
        """
        removed = 0
        with self._locked():
            files = list(self._files())
            home = str(self.namespace.parent) + os.sep
            own = [file for file in files if file.path.startswith(home)]
            removed += _remove(files_to_remove(own, self.model_bytes - size_bytes))
            left = [file for file in files if os.path.exists(file.path)]
            removed += _remove(files_to_remove(left, self.root_bytes - size_bytes))
        return removed

    @contextmanager
    def _locked(self) -> Generator[None]:
        lock = FileLock(self.root / ROOT_LOCK)
        lock.take(wait=True)
        try:
            yield
        finally:
            lock.release()

    def _files(self) -> Iterator[StoredFile]:
        """Every snapshot file under the root."""
        for identity in _directories(self.root):
            configured = self._is_configured(identity)
            for namespace in _directories(identity):
                wanted = configured or namespace == self.namespace or _in_use(namespace)
                for path in namespace.glob(f"*{SUFFIX}"):
                    with suppress(FileNotFoundError):
                        facts = path.stat()
                        yield StoredFile(
                            path=str(path),
                            size_bytes=facts.st_size,
                            used_at_s=facts.st_mtime,
                            wanted=wanted,
                        )

    def _is_configured(self, identity: Path) -> bool:
        """Whether the directory is another model's that is still one, with these weights as far as
        we know.
        """
        name = owner(identity)
        if name is None or name == owner(self.namespace.parent):
            return False
        return self.configured is None or name in self.configured


def owner(identity: Path) -> str | None:
    """The model's name an identity's directory is of."""
    try:
        return str(json.loads((identity / OWNER).read_text())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _in_use(namespace: Path) -> bool:
    """Whether a living process writes there."""
    path = namespace / WRITER_LOCK
    if not path.exists():
        return False
    lock = FileLock(path)
    free = lock.take()
    lock.release()
    return not free


def _directories(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _remove(files: list[StoredFile]) -> int:
    removed = 0
    for file in files:
        with suppress(FileNotFoundError):
            os.unlink(file.path)
            removed += 1
    return removed
