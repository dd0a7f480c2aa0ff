"""Admission: whether a model may be loaded now, what must leave first, or what it waits for.

What goes first: a load that nobody waits for any more, then what is idle, least recently used
first; of these no more than needed, and nobody whose going would not help. Never what is pinned,
leased, wanted or fresh, nor a load that is wanted. A model that is leaving still counts, and its
room is not made twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from msgspec import Struct, structs

from .holdings import Holdings, Resident, shown

MOST_NAMED = 4


class Admit(Struct, frozen=True, kw_only=True):
    """Load it now; ``reserved_bytes`` are then counted for all workers together."""

    reserved_bytes: int


class Victim(Struct, frozen=True, kw_only=True):
    """A model that has to leave, and why."""

    name: str
    reason: Literal["load_unwanted", "least_recently_used"]


class Evict(Struct, frozen=True, kw_only=True):
    """Unload these, then ask again."""

    victims: tuple[Victim, ...]


class Wait(Struct, frozen=True, kw_only=True):
    """Ask again when one of ``held_by`` changed: without them it would fit."""

    reason: str
    held_by: tuple[str, ...]


class Never(Struct, frozen=True, kw_only=True):
    """It cannot fit until the configuration changes."""

    reason: str


Decision = Admit | Evict | Wait | Never


def decide(asked: Resident, holdings: Holdings) -> Decision:
    """What to do about a model that is to be loaded and is not resident."""
    holdings = _with_empty_workers(holdings, asked)
    asked = _fitted(asked, holdings) if asked.guessed else asked
    now = holdings.reserved_bytes(asked=asked)
    if now <= holdings.pool_bytes:
        return Admit(reserved_bytes=now)
    leaving = _leaving(holdings)
    if _fits(holdings, asked, leaving):
        verb = "is leaving" if len(leaving) == 1 else "are leaving"
        return Wait(
            reason=f"{_wanting(asked, holdings)}: {_named(sorted(leaving))} {verb}",
            held_by=tuple(sorted(leaving)),
        )
    victims = _needed(holdings, asked, leaving, evictable(holdings.residents))
    if victims is not None:
        return Evict(victims=victims)
    if _is_hopeless(asked, holdings):
        return Never(reason=_why_never(asked, holdings))
    return _wait(asked, holdings, leaving)


def relief(holdings: Holdings) -> Evict | None:
    """What to unload because workers grew beyond the pool; None: nothing is to be, or can be."""
    holdings = _with_empty_workers(holdings, None)
    leaving = _leaving(holdings)
    if holdings.reserved_bytes(without=leaving) <= holdings.pool_bytes:
        return None
    victims = _needed(holdings, None, leaving, evictable(holdings.residents))
    return Evict(victims=victims) if victims else None


def evictable(residents: Iterable[Resident]) -> list[Resident]:
    """Those that may go, in the order in which they go."""
    return sorted((r for r in residents if r.state != "leaving" and not r.hold), key=_lru)


def _lru(resident: Resident) -> tuple[bool, float, str]:
    return resident.state != "loading", resident.last_used_at, resident.name


def _fits(holdings: Holdings, asked: Resident | None, without: frozenset[str]) -> bool:
    return holdings.reserved_bytes(without=without, asked=asked) <= holdings.pool_bytes


def _needed(
    holdings: Holdings,
    asked: Resident | None,
    leaving: frozenset[str],
    candidates: Sequence[Resident],
) -> tuple[Victim, ...] | None:
    """The first candidates that suffice, without those that are not needed after all."""
    chosen: list[Resident] = []
    gone = leaving
    for candidate in candidates:
        if _fits(holdings, asked, gone):
            break
        chosen.append(candidate)
        gone |= {candidate.name}
    if not _fits(holdings, asked, gone):
        return None
    for candidate in reversed(chosen):
        if _fits(holdings, asked, gone - {candidate.name}):
            gone -= {candidate.name}
    return tuple(
        Victim(
            name=r.name,
            reason="load_unwanted" if r.state == "loading" else "least_recently_used",
        )
        for r in chosen
        if r.name in gone
    )


def _wait(asked: Resident, holdings: Holdings, leaving: frozenset[str]) -> Wait:
    """For those whose going would make room, as far as it would."""
    movable = [r for r in holdings.residents if r.state != "leaving" and not _stays(r)]
    movable.sort(key=lambda r: (r.hold != "", *_lru(r)))
    needed = _needed(holdings, asked, leaving, movable)
    names = {v.name for v in needed} if needed else {r.name for r in movable}
    held = [r for r in movable if r.name in names and r.hold]
    why = _named([f"{r.name} is {r.hold}" for r in held]) or "workers hold more than their models"
    return Wait(reason=f"{_wanting(asked, holdings)}: {why}", held_by=tuple(r.name for r in held))


def _is_hopeless(asked: Resident, holdings: Holdings) -> bool:
    """Whether it cannot fit even beside nothing but what is pinned."""
    pinned = tuple(r for r in holdings.residents if _stays(r))
    least = replace(holdings, residents=pinned, slots={})
    return least.reserved_bytes(asked=asked) > holdings.pool_bytes


def _with_empty_workers(holdings: Holdings, asked: Resident | None) -> Holdings:
    """A process without a model, but for one that waits for ``asked``, is on its way out."""
    used = {r.slot for r in holdings.residents} | ({asked.slot} if asked else set[str]())
    ghosts = tuple(
        Resident(name=f"worker {name}", slot=name, weights=(), own_bytes=0, state="leaving")
        for name in holdings.slots
        if name not in used
    )
    return replace(holdings, residents=holdings.residents + ghosts)


def _stays(resident: Resident) -> bool:
    return resident.pinned and resident.state != "leaving"


def _leaving(holdings: Holdings) -> frozenset[str]:
    return frozenset(r.name for r in holdings.residents if r.state == "leaving")


def _fitted(asked: Resident, holdings: Holdings) -> Resident:
    """A guess, cut to what it could have at best: only what is known keeps a model out."""
    others = frozenset(r.name for r in holdings.residents if not _stays(r))
    least = holdings.reserved_bytes(without=others, asked=structs.replace(asked, own_bytes=0))
    return structs.replace(
        asked, own_bytes=max(0, min(asked.own_bytes, holdings.pool_bytes - least))
    )


def _wanting(asked: Resident, holdings: Holdings) -> str:
    reserved = holdings.reserved_bytes()
    needs = holdings.reserved_bytes(asked=asked) - reserved
    free = max(0, holdings.pool_bytes - reserved)
    return f"{asked.name} needs {shown(needs)} and {shown(free)} are free"


def _why_never(asked: Resident, holdings: Holdings) -> str:
    alone = Holdings(residents=(), slots={}, pool_bytes=holdings.pool_bytes)
    needs, pool = alone.reserved_bytes(asked=asked), holdings.pool_bytes
    advice = "lower its context_tokens, or raise memory_share or memory_bytes"
    if needs > pool:
        return f"{asked.name} needs {shown(needs)}, the memory pool has {shown(pool)}: {advice}"
    pinned = _named([r.name for r in holdings.residents if _stays(r)])
    return (
        f"{asked.name} needs {shown(needs)}, and of the memory pool's {shown(pool)} pinned models "
        f"({pinned}) leave less: unpin one, or {advice}"
    )


def _named(items: Sequence[str]) -> str:
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more
