"""Which absent models may load now: each that is wanted gets its place, oldest call first.

A place is reserved in the moment it is found, so loads that cannot both fit never both start.
Who waits too long has those it waits for drained, and nobody younger is let past it meanwhile.
"""

from __future__ import annotations

from math import inf

from msgspec import structs

from ...protocol.errors import ErrorCode
from . import accounts, announcing, eviction, inspecting, load_failure, placement, residency
from .life import ALIVE, COMING, Residency, WorkerState
from .memory import Admit, Evict, Never, Wait, decide
from .records import Model
from .state import State

ABLE = ALIVE | COMING | {WorkerState.stopped}
"""States of a worker in which a model may be given its place."""


def consider(s: State, now: float) -> None:
    """Begin the loads that can begin; forget calls that nobody waits for any more."""
    for name in list(s.callers):
        model = s.models.get(name)
        if model is None or model.state is not Residency.absent or not model.wanted:
            forget(s, name)
            if model is not None:
                inspecting.forget(model)
        elif s.shutdown_level == 0 and not may_pass(s, model, now):
            return


def forget(s: State, name: str) -> None:
    """A call is over: its model is on its way, or nobody waits for it any more."""
    del s.callers[name]
    model = s.models.get(name)
    if model is not None:
        model.called_at = None
        model.makes_room = False
        model.waits = ""
        s.touch(s.worker_of(model))


def may_pass(s: State, model: Model, now: float) -> bool:
    """Take a caller as far as it gets; False: nobody younger may pass it."""
    if model.called_at is None:
        model.called_at = now
    if s.worker_of(model).state not in ABLE:
        return True
    if model.facts is None:
        inspecting.ask(s, model, now)
        return True
    conflict = placement.predicted(s, model)
    if conflict:
        if not placement.conflicted(s, model, conflict):
            load_failure.refuse(s, model, now, ErrorCode.hook_conflict, conflict)
        return True
    return ask_for_memory(s, model, now)


def ask_for_memory(s: State, model: Model, now: float) -> bool:
    """Find room for a model whose sizes are known; False: nobody younger may pass it."""
    holdings = accounts.holdings(s, now)
    if model.ran_out and any(resident.state == "leaving" for resident in holdings.residents):
        wait(s, model, "memory ran out while it was loaded; others leave first", now)
        return False
    asked = accounts.resident(s, model, now)
    match decide(asked, holdings):
        case Admit(reserved_bytes=reserved_bytes):
            if asked.guessed:
                bare = structs.replace(asked, own_bytes=0)
                model.guess_bytes = reserved_bytes - holdings.reserved_bytes(asked=bare)
            forget(s, model.name)
            residency.begin(s, model, now)
        case Evict(victims=victims):
            for victim in victims:
                eviction.evict(s, s.models[victim.name], victim.reason, model.name, now)
            model.makes_room = True
        case Wait(reason=reason, held_by=held_by):
            if is_overdue(s, model, now):
                model.makes_room = True
                eviction.drain_for(s, model, held_by, now)
            wait(s, model, reason, now)
        case Never(reason=reason):
            load_failure.turn_away(s, model, now, reason)
    return not model.makes_room


def is_overdue(s: State, model: Model, now: float) -> bool:
    """Whether a caller has waited behind others for as long as it has to."""
    return now >= overdue_at(s, model)


def overdue_at(s: State, model: Model) -> float:
    """When a caller need not wait any longer for those who are in its way."""
    return inf if model.called_at is None else model.called_at + s.limits.max_wait_behind_s


def wait(s: State, model: Model, reason: str, now: float) -> None:
    """Tell those who wait for a model what keeps it out, when that changed."""
    if model.waits == reason:
        return
    if not model.waits:
        s.note("memory_waited_for", model=model.name, reason=reason)
        s.tell_stage(model, "waiting")
    model.waits = reason
    announcing.announce(s, model, now)


def next_look(s: State, now: float) -> float:
    """When time alone may let a caller in: it is overdue, or someone's least stay is over."""
    waiting = [s.models[name] for name in s.callers if s.models[name].waits]
    if not waiting:
        return inf
    moments = [overdue_at(s, model) for model in waiting]
    moments += [accounts.fresh_until(s, m) for m in s.models.values() if m.loaded is not None]
    return min((moment for moment in moments if moment > now), default=inf)
