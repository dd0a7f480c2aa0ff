"""L1: the snapshots of one model in memory, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from .eviction import Worth, cheapest
from .prefixes import Candidate, common_prefix, covers
from .snapshot import Snapshot


@dataclass(slots=True, kw_only=True)
class _Entry:
    snapshot: Snapshot
    candidate: Candidate
    worth: Worth


@final
class RamStore:
    """Least recently used goes first, weighed by what recomputing it would cost."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: dict[str, _Entry] = {}
        self._floor = 0.0
        self.held_bytes = 0
        self.evictions = 0
        self.superseded = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """Rows held by all entries together."""
        return sum(len(entry.candidate.tokens) for entry in self._entries.values())

    def candidates(self) -> Iterator[Candidate]:
        """All entries, as far as choosing goes."""
        return (entry.candidate for entry in self._entries.values())

    def get(self, key: str) -> Snapshot:
        """An entry that is used now."""
        entry = self._entries[key]
        entry.worth.renew(self._floor)
        return entry.snapshot

    def fits(self, size_bytes: int) -> bool:
        """Whether anything so large can be held at all."""
        return size_bytes <= self._limit_bytes

    def covering(self, new: Candidate) -> str | None:
        """The entry that already serves all that ``new`` would."""
        return next(
            (e.candidate.key for e in self._entries.values() if covers(e.candidate, new)), None
        )

    def inherited(self, new: Snapshot) -> Snapshot:
        """``new`` with the logits of the entries whose place it is going to take."""
        candidate = new.candidate
        for entry in self._entries.values():
            if covers(candidate, entry.candidate):
                new = new.with_logits(entry.snapshot.logits)
        return new

    def put(self, snapshot: Snapshot) -> None:
        """Hold ``snapshot``, which fits; what it covers gives its place up, then what is cheapest.

        Its arrays must be evaluated, and its logits inherited.
        """
        candidate, size_bytes = snapshot.candidate, snapshot.nbytes
        for key in [k for k, e in self._entries.items() if covers(candidate, e.candidate)]:
            self._remove(key)
            self.superseded += key != candidate.key
        self._remove(candidate.key)
        while self._entries and self.held_bytes + size_bytes > self._limit_bytes:
            key = cheapest((key, entry.worth) for key, entry in self._entries.items()) or ""
            self._floor = self._entries[key].worth.credit
            self._remove(key)
            self.evictions += 1
        worth = Worth(cost_tokens=self._cost_tokens(candidate), size_bytes=size_bytes)
        worth.renew(self._floor)
        self._entries[candidate.key] = _Entry(snapshot=snapshot, candidate=candidate, worth=worth)
        self.held_bytes += size_bytes

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self.held_bytes = 0

    def _cost_tokens(self, new: Candidate) -> int:
        """What would have to be computed anew without it: its rows behind another's."""
        shared = 0
        for entry in self._entries.values():
            old = entry.candidate
            common = common_prefix(old.tokens, new.tokens)
            if old.trimmable or common == len(old.tokens):
                shared = max(shared, common)
        return len(new.tokens) - shared

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.held_bytes -= entry.worth.size_bytes
