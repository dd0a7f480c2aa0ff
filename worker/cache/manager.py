"""One model's cache: what it answers, what it takes, and what it tells of itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, final

from ...protocol.messages import CacheBody, CacheSettings
from ..log import line, log
from .disk import DiskSettings, DiskStore
from .identity import CacheIdentity, Fingerprint
from .prefixes import Match, MissReason, Query, best_match
from .ram import RamStore
from .snapshot import Snapshot

FLUSH_S = 1.5
"""How long a retirement waits for writes; a worker that stops has two seconds in all."""

L2_GAIN_TOKENS = 64
"""What a file must serve more than memory does, to be read."""

HitKind = Literal["l1_exact", "l1_prefix", "l2_exact", "l2_prefix"]


class CacheStuck(Exception):
    """A cache could not be shut down within its limit: its writer still holds the directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A snapshot to go on from, and how many rows of it. Exact: the last logits are there too."""

    kind: HitKind
    snapshot: Snapshot
    rows: int

    @property
    def exact(self) -> bool:
        """Whether nothing of the prompt is left to compute."""
        return self.kind.endswith("exact")


@final
class CacheManager:
    """Keeps and finds snapshots of one model. All calls on the thread that owns the model.

    A retired manager misses and takes nothing, but stays safe to call: a request that carries it
    goes on to its end.
    """

    def __init__(
        self,
        identity: CacheIdentity,
        fingerprint: Fingerprint,
        settings: CacheSettings,
        disk: DiskSettings | None,
    ) -> None:
        self.identity = identity
        self.fingerprint = fingerprint
        self.settings = settings
        self.disk_settings = disk
        self.state: Literal["open", "retired", "stuck"] = "open"
        self._ram = RamStore(settings.ram_bytes)
        self._disk: DiskStore | None = None
        self._disk_reason = "off"
        if disk is not None:
            try:
                self._disk = DiskStore(identity, fingerprint, disk)
            except OSError as error:
                self._disk_reason = f"off: {error.strerror or error} ({disk.root})"
                log.warning(line("cache_disk_off", identity=identity.short, reason=error))
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._cached_tokens = 0
        self._stored = 0

    @property
    def is_open(self) -> bool:
        """Whether it still takes and gives."""
        return self.state == "open"

    def lookup(self, query: Query) -> Hit | MissReason:
        """The best snapshot for a prompt, or why there is none."""
        found = self._lookup(query) if self.is_open else "retired"
        if isinstance(found, Hit):
            self._hits[found.kind] += 1
            self._cached_tokens += found.rows
        else:
            self._misses[found] += 1
        return found

    def store(self, snapshot: Snapshot, *, durable: bool) -> None:
        """Take a sound snapshot, evaluated or not; ``durable`` ones are for the disk too."""
        reason = self._store(snapshot, durable=durable) if self.is_open else "retired"
        if reason is not None:
            self._refused[reason] += 1

    def note_failure(self, what: str) -> None:
        """Count something that went wrong around this cache."""
        self._refused[what] += 1

    def clear(self) -> None:
        """Forget everything, in memory and on disk."""
        self._ram.clear()
        if self._disk is not None:
            self._disk.clear()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is on disk; False if that takes longer."""
        return self._disk is None or self._disk.writer.flush(timeout_s)

    def retire(self, timeout_s: float = FLUSH_S) -> None:
        """Take and give nothing more; write what waits within the limit. Idempotent.

        Raises CacheStuck if a write does not end; the state says so, and another try may help.
        """
        if self.state == "retired":
            return
        self.state = "stuck"
        self._ram.clear()
        if self._disk is not None and not self._disk.close(timeout_s):
            raise CacheStuck(f"the cache of {self.identity.name} still writes to its disk")
        self.state = "retired"

    def report(self) -> CacheBody:
        """What people see."""
        disk = self._disk
        return CacheBody(
            identity=self.identity.short,
            fingerprint=self.fingerprint.short,
            state=self.state,
            ram_entries=len(self._ram),
            ram_tokens=self._ram.tokens,
            ram_bytes=self._ram.held_bytes,
            ram_limit_bytes=self.settings.ram_bytes,
            disk=self._disk_word(),
            disk_entries=0 if disk is None else len(disk),
            disk_bytes=0 if disk is None else disk.held_bytes,
            disk_limit_bytes=self.settings.disk_bytes,
            disk_queued=0 if disk is None else disk.writer.queued,
            disk_written=0 if disk is None else disk.writer.written,
            disk_written_bytes=0 if disk is None else disk.writer.written_bytes,
            disk_dropped={} if disk is None else dict(disk.writer.dropped),
            disk_removed=0 if disk is None else disk.removed,
            disk_bad_files={} if disk is None else dict(disk.bad_files),
            hits=dict(self._hits),
            misses=dict(self._misses),
            cached_tokens=self._cached_tokens,
            stored=self._stored,
            not_stored=dict(self._refused),
            evictions=self._ram.evictions,
            superseded=self._ram.superseded,
        )

    def _lookup(self, query: Query) -> Hit | MissReason:
        near = best_match(self._ram.candidates(), query)
        far: Match | MissReason = "cold"
        if self._disk is not None:
            self._disk.refresh()
            far = best_match(self._disk.candidates(), query)
        if isinstance(far, Match) and _is_better(far, near):
            hit = self._from_disk(far)
            if hit is not None:
                return hit
            if not isinstance(near, Match):
                return "unreadable"
        if isinstance(near, Match):
            kind: HitKind = "l1_exact" if near.exact else "l1_prefix"
            return Hit(kind=kind, snapshot=self._ram.get(near.key), rows=near.rows)
        # Both missed: the reason that says more.
        return near if near != "cold" or isinstance(far, Match) else far

    def _from_disk(self, match: Match) -> Hit | None:
        assert self._disk is not None  # noqa: S101 - a match came from it
        snapshot = self._disk.get(match.key)
        if snapshot is None:
            return None
        if self._ram.fits(snapshot.nbytes):
            self._ram.put(self._ram.inherited(snapshot))
        return Hit(
            kind="l2_exact" if match.exact else "l2_prefix", snapshot=snapshot, rows=match.rows
        )

    def _store(self, snapshot: Snapshot, *, durable: bool) -> str | None:
        """Keep it; the reason if it is not kept."""
        held = self._ram.covering(snapshot.candidate)
        if held is not None:
            older = self._ram.get(held)
            if older.candidate.logits_at >= snapshot.candidate.logits_at:
                return "covered"
            snapshot = older.with_logits(snapshot.logits)
        snapshot = self._ram.inherited(snapshot)
        fits = self._ram.fits(snapshot.nbytes)
        if not fits and (self._disk is None or not durable):
            return "too_large"
        snapshot.evaluate()
        if fits:
            self._ram.put(snapshot)
            self._stored += 1
        if durable and self._disk is not None:
            self._disk.refresh()
            self._disk.put(snapshot)
        return None

    def _disk_word(self) -> str:
        if self._disk is None:
            return self._disk_reason
        return self._disk.reason or "on"


def _is_better(far: Match, near: Match | MissReason) -> bool:
    if not isinstance(near, Match):
        return True
    return far.rows - near.rows >= L2_GAIN_TOKENS or (far.exact and not near.exact)
