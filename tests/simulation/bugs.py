"""Plausible mistakes, planted one at a time: the simulation must find each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec import structs

from dflashd.protocol.messages import Failed
from dflashd.supervisor.core import accounts, dispatch, ending, eviction, failure, timers
from dflashd.supervisor.core.holdings import Holdings, Resident
from dflashd.supervisor.core.home import Home
from dflashd.supervisor.core.life import Phase, Residency
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.records import Model, Request, Worker
from dflashd.supervisor.core.shares import Room
from dflashd.supervisor.core.state import State

Bug = Callable[[], Any]


def lease_published_late() -> Any:
    """Readiness is told before who waited has its lease, which comes with the next event."""
    assign = dispatch.assign

    def late(s: State, worker: Worker, now: float) -> None:
        just_ready = (m.loaded and m.ready_at == now for m in s.models_of(worker))
        if not any(just_ready):
            assign(s, worker, now)

    return patch.object(dispatch, "assign", late)


def epoch_not_compared() -> Any:
    """What an old incarnation says counts for the new one."""

    def current(core: Core, name: str, epoch: int) -> Worker | None:
        return core.state.workers.get(name)

    return patch.object(Core, "_current", current)


def victim_not_fenced() -> Any:
    """A model that is to leave still takes what was asked after that."""

    def promised(model: Model) -> Iterator[Request]:
        return iter(model.queue.values())

    return patch.object(dispatch, "promised", promised)


def deadline_forgotten() -> Any:
    """Nobody looks at how long a cancelled request has waited for its worker's word."""
    known = timers.request_deadline

    def forgetful(s: State, request: Request) -> float:
        return float("inf") if request.phase is Phase.cancelling else known(s, request)

    return patch.object(timers, "request_deadline", forgetful)


def event_delivered_twice() -> Any:
    """A worker's last word reaches a client who was answered already."""

    def answer(s: State, request: Request, header: Any, body: bytes = b"") -> None:
        s.tell(request.peer, header, body)
        s.counters["completed" if not isinstance(header, Failed) else str(header.code)] += 1

    return patch.object(ending, "answer", answer)


def first_come_takes_all() -> Any:
    """Nobody looks at how much of a queue is one client's."""
    return patch.object(Room, "is_less_than", lambda *_: False)


def slots_told_apart_by_name() -> Any:
    """A group and a model of one name share a worker."""

    def slot(s: State, home: Home) -> Worker:
        return s.workers.setdefault(home.name, Worker(name=home.name, home=home))

    return patch.object(State, "slot", slot)


def place_not_reserved() -> Any:
    """A load counts only when it is done: two that cannot both fit both start."""
    known = accounts.holdings

    def forgetful(s: State, now: float) -> Holdings:
        found = known(s, now)
        there = tuple(resident for resident in found.residents if resident.state != "loading")
        return dataclasses.replace(found, residents=there)

    return patch.object(accounts, "holdings", forgetful)


def pin_not_seen() -> Any:
    """A pinned model is evicted like any other."""
    known = accounts.resident

    def blind(s: State, model: Model, now: float) -> Resident:
        return structs.replace(known(s, model, now), pinned=False)

    return patch.object(accounts, "resident", blind)


def idle_since_the_start() -> Any:
    """A model is unloaded so long after its load, not after its last request."""

    def until(s: State, model: Model) -> float:
        if model.state is not Residency.ready or model.settings.idle_ttl_s is None:
            return float("inf")
        leased = model.pinned or model.wanted or accounts.is_leased(s, model)
        return float("inf") if leased else model.ready_at + model.settings.idle_ttl_s

    return patch.object(eviction, "idle_until", until)


def stop_undone() -> Any:
    """A pinned model comes back after any end of its process, also the one an operator wanted."""
    known = failure.gone

    def gone(s: State, worker: Worker, now: float, message: str) -> None:
        for model in s.models_of(worker):
            model.summoned = model.summoned or model.pinned
        known(s, worker, now, message)

    return patch.object(failure, "gone", gone)


def steady_traffic_stays() -> Any:
    """Who is never idle is never made to go, however long another waits for its room."""
    return patch.object(eviction, "drain_for", lambda *_: None)


BUGS: tuple[Bug, ...] = (
    lease_published_late,
    epoch_not_compared,
    victim_not_fenced,
    deadline_forgotten,
    event_delivered_twice,
    first_come_takes_all,
    slots_told_apart_by_name,
    place_not_reserved,
    pin_not_seen,
    idle_since_the_start,
    stop_undone,
    steady_traffic_stays,
)


@contextmanager
def planted(bug: Bug) -> Generator[None]:
    """The core with one mistake."""
    with bug():
        yield
