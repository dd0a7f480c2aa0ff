"""What is done about a model that cannot be loaded: say why, back off, or give up."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import LoadFailed
from ..config.restarts import pause_s, recent
from . import ending, eviction, placement, vacancy
from .life import Residency, WorkerState
from .records import Model, Worker
from .residency import spoken_of
from .state import State

PERMANENT = frozenset({ErrorCode.bad_request, ErrorCode.unsupported, ErrorCode.hook_conflict})
"""Reasons of a failed load that trying again cannot change."""


def load_failed(s: State, worker: Worker, header: LoadFailed, now: float) -> None:
    """A worker reports that it cannot load a model; nothing of it is left there."""
    model = spoken_of(s, worker, header.model, Residency.loading)
    if model is None:
        return
    s.note(
        "load_failed",
        worker=worker.name,
        epoch=worker.epoch,
        model=model.name,
        code=header.code,
        message=header.message,
    )
    if header.code is ErrorCode.hook_conflict and placement.conflicted(s, model, header.message):
        return
    if header.code is ErrorCode.out_of_memory and tries_again(s, model, now):
        return
    refuse(s, model, now, header.code, header.message)


def tries_again(s: State, model: Model, now: float) -> bool:
    """Once, when something can leave: sizes were reckoned too small."""
    vacancy.vacate(s, model)
    if model.ran_out or not eviction.all_idle(s, model, now):
        return False
    model.ran_out = True
    s.note("load_tried_again", model=model.name)
    return True


def turn_away(s: State, model: Model, now: float, reason: str) -> None:
    """A model has no place in memory as things are: all who wait for it hear why."""
    s.note("memory_refused", model=model.name, reason=reason)
    s.fail_commands(model.spawns, ErrorCode.out_of_memory, reason)
    ending.fail_queued(s, model, now, ErrorCode.out_of_memory, reason)
    model.reason = reason
    model.summoned = False
    s.call(model)


def refuse(s: State, model: Model, now: float, code: ErrorCode, message: str) -> None:
    """A model cannot be had now: all who wait for it hear why, and the next try comes later."""
    s.fail_commands(model.spawns, code, message)
    ending.fail_queued(s, model, now, code, message)
    s.counters["load_failures"] += 1
    s.metrics.models[model.name].failures[code] += 1
    model.failures = recent(model.failures, now, s.limits)
    model.reason = message
    model.ran_out = False
    vacancy.vacate(s, model)
    if model.retires or s.shutdown_level:
        return
    wait_s = None if code in PERMANENT else pause_s(model.failures, s.limits, s.random())
    if wait_s is None:
        s.note("model_given_up", model=model.name, reason=message[-500:])
        model.summoned = False
        s.place(model, Residency.fatal)
    else:
        s.place(model, Residency.backoff, now + wait_s)


def forgive(s: State, model: Model) -> None:
    """An operator's word clears earlier failures, of the model and of its worker."""
    model.failures.clear()
    model.reason = ""
    if model.state in (Residency.backoff, Residency.fatal):
        s.place(model, Residency.absent)
    worker = s.worker_of(model)
    worker.failures.clear()
    if worker.state in (WorkerState.fatal, WorkerState.backoff):
        s.enter(worker, WorkerState.stopped, None)
