"""Models that go without an operator's word: for another, for the memory, or for being idle."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from . import accounts, residency, retiring
from .life import Residency
from .memory import evictable, relief
from .records import Model
from .state import State


def evict(s: State, model: Model, cause: str, room_for: str, now: float) -> None:
    """Take an idle model, or a load nobody waits for, out at once."""
    told(s, model, cause, room_for, now)
    residency.leave(s, model, now)


def drain_for(s: State, asked: Model, held_by: Iterable[str], now: float) -> None:
    """Let models in the way of ``asked`` end what they compute, take nothing new, and go."""
    holders = [s.models[name] for name in held_by if name in s.models]
    if any(now < accounts.fresh_until(s, model) for model in holders):
        return
    for model in holders:
        if model.state is Residency.ready:
            told(s, model, "waited_for_too_long", asked.name, now)
            model.going = f"model {model.name} makes room for {asked.name}"
            # Serials begin at 1: what waits is served by the next load.
            model.leaving = 0
            retiring.drain(s, model, now, s.limits.evict_drain_timeout_s)


def told(s: State, model: Model, cause: str, room_for: str, now: float) -> None:
    """Write down who goes and why."""
    s.metrics.models[model.name].evictions[cause] += 1
    idle_s = round(now - model.idle_since, 3) if model.loaded is not None else 0.0
    fields: dict[str, str | float] = {"cause": cause, "idle_s": idle_s}
    if room_for:
        fields["room_for"] = room_for
    s.note("model_evicted", worker=model.worker, model=model.name, **fields)


def relieve(s: State, now: float) -> None:
    """Make idle models go when workers were seen to have grown beyond the pool."""
    s.measured = False
    found = relief(accounts.holdings(s, now))
    for victim in found.victims if found else ():
        evict(s, s.models[victim.name], "memory_outgrown", "", now)


def all_idle(s: State, asked: Model, now: float) -> bool:
    """Evict whatever may go, since sizes have proved wrong; whether anything was there."""
    found = evictable(accounts.holdings(s, now).residents)
    for victim in found:
        evict(s, s.models[victim.name], "memory_ran_out", asked.name, now)
    return bool(found)


def idle_until(s: State, model: Model) -> float:
    """When a model has been idle for as long as it may stay."""
    ttl_s = model.settings.idle_ttl_s
    busy = model.pinned or model.state is not Residency.ready or model.wanted
    if ttl_s is None or busy or accounts.is_leased(s, model):
        return inf
    return model.idle_since + ttl_s
