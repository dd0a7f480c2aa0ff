"""What has to go when there is no room: pure orders, for RAM and for disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Worth:
    """A RAM entry's standing: GreedyDual-Size (Cao and Irani 1997).

    ``credit`` is the floor at its last use plus what recomputing it would cost per byte; the
    floor rises to the credit of what is evicted, so that age counts against cost.
    """

    cost_tokens: int
    size_bytes: int
    credit: float = 0.0

    def renew(self, floor: float) -> None:
        """It was used, or is new."""
        self.credit = floor + self.cost_tokens / max(1, self.size_bytes)


def cheapest(worths: Iterable[tuple[str, Worth]]) -> str | None:
    """The key to evict first; among equals the one that comes first."""
    return min(worths, key=lambda item: item[1].credit, default=("", None))[0] or None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file in the disk root. ``wanted``: its namespace is in use or of a configured model."""

    path: str
    size_bytes: int
    used_at_s: float
    wanted: bool


def files_to_remove(files: Iterable[StoredFile], limit_bytes: int) -> list[StoredFile]:
    """The fewest files to remove until the rest fits: unwanted ones first, then by last use."""
    order = sorted(files, key=lambda file: (file.wanted, file.used_at_s, file.path))
    excess = sum(file.size_bytes for file in order) - limit_bytes
    removed: list[StoredFile] = []
    for file in order:
        if excess <= 0:
            break
        removed.append(file)
        excess -= file.size_bytes
    return removed
