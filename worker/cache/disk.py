"""L2: the snapshots of one model on disk, one file each, in a directory of their own.

``<root>/<identity>/<fingerprint>/<key>.safetensors``: what one namespace holds is of no use to
any other, so nothing in it needs to be told apart.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ..log import line, log
from . import snapshot_file
from .identity import CacheIdentity, Fingerprint
from .prefixes import Candidate, covers
from .quota import OWNER, WRITER_LOCK, FileLock, Quota
from .snapshot import Snapshot
from .snapshot_file import SUFFIX, BadFile, Payload
from .writer import Writer

READ_ONLY = "another process writes to this cache: it is only read here"
READ_ONLY_HERE = (
    "this process writes to this cache already, for another Host or a model that has not quite "
    "gone: it is only read here"
)
_TEMPORARY = ".part-"
_TICK_NS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """Where, and how much. ``configured``: the names of all models there are, if known."""

    root: Path
    model_bytes: int
    root_bytes: int
    configured: frozenset[str] | None = None


@final
class DiskStore:
    """One namespace. All calls on one thread; files are written by another.

    Raises OSError when the directory cannot be made.
    """

    def __init__(
        self, identity: CacheIdentity, fingerprint: Fingerprint, settings: DiskSettings
    ) -> None:
        home = settings.root / identity.short
        self.folder = home / fingerprint.short
        # A root that was there before, perhaps a whole disk, stays as its owner made it.
        for folder in (settings.root, home, self.folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.chmod(0o700)
        if not (home / OWNER).exists():
            (home / OWNER).write_text(json.dumps({"name": identity.name}))
        self._settings = settings
        self._stamp = f"{identity.short}/{fingerprint.short}"
        self._lock = FileLock(self.folder / WRITER_LOCK)
        self._quota = Quota(
            root=settings.root,
            namespace=self.folder,
            model_bytes=settings.model_bytes,
            root_bytes=settings.root_bytes,
            configured=settings.configured,
        )
        self.writer = Writer(f"cache-writer-{identity.slug}", self._store)
        self._index: dict[str, tuple[Candidate, int]] = {}
        self._submitted: dict[str, Candidate] = {}
        self._seen_ns = -1
        self.bad_files: Counter[str] = Counter()
        """Files that were removed because they could not be used, by what was wrong."""
        self.removed = 0
        """Files that gave room, to the quotas."""
        if self._lock.take():
            self._sweep()
        self.refresh()

    @property
    def reason(self) -> str:
        """Why nothing is written at present; empty when writing works."""
        if self._lock.held:
            return self.writer.refusal
        return READ_ONLY_HERE if self._lock.missed_to_us else READ_ONLY

    @property
    def held_bytes(self) -> int:
        """Bytes of the files known."""
        return sum(size_bytes for _, size_bytes in self._index.values())

    def __len__(self) -> int:
        return len(self._index)

    def candidates(self) -> Iterator[Candidate]:
        """All files, as far as choosing goes."""
        return (candidate for candidate, _ in self._index.values())

    def refresh(self) -> None:
        """Notice files that came or went, also by other processes; cheap when none did."""
        try:
            changed_ns = self.folder.stat().st_mtime_ns
        except OSError:
            self._index.clear()
            return
        if changed_ns == self._seen_ns:
            return
        # Within one tick of the file system's clock a further change would not show.
        self._seen_ns = changed_ns if time.time_ns() - changed_ns > _TICK_NS else -1
        present = {path.name.removesuffix(SUFFIX): path for path in self.folder.glob(f"*{SUFFIX}")}
        for key in self._index.keys() - present.keys():
            del self._index[key]
        for key in present.keys() - self._index.keys():
            try:
                self._index[key] = snapshot_file.peek(present[key], self._stamp)
            except BadFile as error:
                self._discard(present[key], error)
            except OSError:
                continue

    def get(self, key: str) -> Snapshot | None:
        """Read a snapshot; None when it is gone or was not sound."""
        path = self.folder / f"{key}{SUFFIX}"
        try:
            snapshot = snapshot_file.read(path, key, self._stamp)
        except BadFile as error:
            self._index.pop(key, None)
            self._discard(path, error)
            return None
        except OSError as error:
            self._index.pop(key, None)
            log.warning(line("cache_read_failed", file=path.name, reason=error.strerror or error))
            return None
        with suppress(OSError):
            os.utime(path)
        return snapshot

    def put(self, snapshot: Snapshot) -> bool:
        """Queue an evaluated snapshot for writing; what it covers is not kept. False: dropped."""
        if not self._lock.held and not self._lock.take():
            self.writer.dropped["read_only"] += 1
            return False
        new = snapshot.candidate
        known = (*self.candidates(), *self._queued())
        if any(covers(old, new) and old.logits_at >= new.logits_at for old in known):
            return True
        replaced = frozenset(old.key for old in known if covers(new, old) and old.key != new.key)
        self._submitted[new.key] = new
        return self.writer.submit(snapshot_file.payload(snapshot, self._stamp, replaced))

    def clear(self) -> int:
        """Remove all files; how many. Nothing that waits is written any more."""
        self.writer.forget()
        self.writer.flush(5.0)
        count = 0
        for path in self.folder.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                path.unlink()
                count += 1
        self._seen_ns = -1
        self.refresh()
        return count

    def close(self, timeout_s: float) -> bool:
        """Write what waits within the limit; False: a write is still under way, lock and all."""
        if not self.writer.close(timeout_s):
            return False
        self._lock.release()
        return True

    def _queued(self) -> tuple[Candidate, ...]:
        waiting = self.writer.waiting
        self._submitted = {key: c for key, c in self._submitted.items() if key in waiting}
        return tuple(self._submitted.values())

    def _store(self, data: Payload) -> str | None:
        """Write one file; on the writer's thread. The reason if it is not written."""
        if data.nbytes > min(self._settings.model_bytes, self._settings.root_bytes):
            return "too_large"
        self.removed += self._quota.make_room(data.nbytes)
        fd, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self.folder)
        try:
            with os.fdopen(fd, "wb") as file:
                snapshot_file.write(file, data)
            os.replace(temporary, self.folder / f"{data.key}{SUFFIX}")
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        for key in data.replaces:
            with suppress(FileNotFoundError):
                (self.folder / f"{key}{SUFFIX}").unlink()
        return None

    def _sweep(self) -> None:
        """Remove what a writer that died left half written."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):
                path.unlink()

    def _discard(self, path: Path, error: BadFile) -> None:
        self.bad_files[str(error)] += 1
        log.warning(line("cache_file_removed", file=path.name, reason=error))
        with suppress(OSError):
            path.unlink()
