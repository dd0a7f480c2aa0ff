"""What all workers together count: residents, their processes, and the pool they have to fit into.

A worker counts its process, the weights of its models (equal ones once), and for each model its
requests and its cache; as facts estimate it until a load has reported, then with the weights as
they are. Beside that stands its *overhang*: what it was last seen to hold beyond the estimate when
no load was running in it (a full prefix cache, pages the allocator keeps). So a worker counts
``max(seen now, estimate + overhang)``: what is seen corrects upwards at once, a load's report both
ways, and requests and caches have room to grow up to their estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct, structs

from ...protocol.messages import LoadedBody
from .facts import PROCESS_BYTES, ModelFacts, Weights

UNKNOWN_SHARE = 0.5
"""Of the pool, for a model that is not on the disk yet: two unknown loads never meet a third."""


class Resident(Struct, frozen=True, kw_only=True):
    """A model in memory, on its way there or away; or the one that asks to be loaded."""

    name: str
    slot: str
    weights: tuple[Weights, ...]
    own_bytes: int
    state: Literal["loading", "ready", "leaving"]
    pinned: bool = False
    leased: bool = False
    wanted: bool = False
    fresh: bool = False
    """Has not served yet, or not stayed its minimum time."""

    last_used_at: float = 0.0
    guessed: bool = False
    """Its sizes are a guess, which alone keeps no model out."""

    @property
    def hold(self) -> str:
        """Why it may not be evicted, for a person; empty where it may."""
        if self.pinned:
            return "pinned"
        if self.leased:
            return "serving requests"
        if self.state == "loading":
            return "loading" if self.wanted else ""
        if self.wanted:
            return "wanted by waiting requests"
        return "loaded only just now" if self.fresh else ""


class Slot(Struct, frozen=True, kw_only=True):
    """A worker process: what it was seen to hold."""

    name: str
    measured_bytes: int = 0
    settled_bytes: int = 0
    """The last measurement while no load was running in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """All that is in memory, and the pool it has to fit into."""

    residents: tuple[Resident, ...]
    slots: Mapping[str, Slot]
    pool_bytes: int

    def reserved_bytes(
        self, *, without: frozenset[str] = frozenset(), asked: Resident | None = None
    ) -> int:
        """What counts once the models ``without`` are gone and ``asked`` is there."""
        names = dict.fromkeys([*self.slots, *(r.slot for r in self.residents)])
        names |= {asked.slot: None} if asked else {}
        return sum(self._slot_bytes(name, without, asked) for name in names)

    def _slot_bytes(self, name: str, without: frozenset[str], asked: Resident | None) -> int:
        slot = self.slots.get(name, Slot(name=name))
        here = [r for r in self.residents if r.slot == name]
        kept = [r for r in here if r.name not in without]
        coming = [asked] if asked and asked.slot == name else []
        if here and not kept and not coming:
            return 0  # the process ends with its last model
        settled = [r for r in here if r.state != "loading"]
        overhang = max(0, slot.settled_bytes - estimate(settled)) if kept or not here else 0
        counted = estimate([*kept, *coming]) + overhang
        return counted if len(kept) < len(here) else max(counted, slot.measured_bytes)


def estimate(models: Iterable[Resident]) -> int:
    """Bytes of a worker that holds ``models``, equal weights counted once."""
    weights: dict[str, int] = {}
    own = 0
    for model in models:
        own += model.own_bytes
        for part in model.weights:
            weights[part.key] = max(part.size_bytes, weights.get(part.key, 0))
    return PROCESS_BYTES + sum(weights.values()) + own


def sizes(facts: ModelFacts, pool_bytes: int) -> tuple[tuple[Weights, ...], int, bool]:
    """``weights``, ``own_bytes`` and ``guessed`` of a resident, before its load has reported."""
    if facts.unknown:
        return (), int(UNKNOWN_SHARE * pool_bytes), True
    return facts.weights, facts.own_bytes, False


def corrected(facts: ModelFacts, loaded: LoadedBody) -> ModelFacts:
    """``facts`` with the weights as a worker reported them, and no cast going on."""
    if not facts.weights:
        return facts
    target, *drafts = facts.weights
    rest = sum(draft.size_bytes for draft in drafts)
    size = max(0, loaded.memory_bytes - rest)
    weights = (structs.replace(target, size_bytes=size), *drafts)
    return structs.replace(facts, weights=weights, cast_bytes=0)


def shown(size: int) -> str:
    """Bytes for a person."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
