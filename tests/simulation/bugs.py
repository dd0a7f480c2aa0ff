"""Plausible mistakes, planted one at a time: the simulation must find each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from dflashd.protocol.messages import Failed
from dflashd.supervisor.core import dispatch, ending, timers
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.records import Model, Phase, Request, Worker
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


BUGS: tuple[Bug, ...] = (
    lease_published_late,
    epoch_not_compared,
    victim_not_fenced,
    deadline_forgotten,
    event_delivered_twice,
)


@contextmanager
def planted(bug: Bug) -> Generator[None]:
    """The core with one mistake."""
    with bug():
        yield
