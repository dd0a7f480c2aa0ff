"""A model that has to go: its requests finish first, within a bound, or fail at once."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from . import ending, residency, stopping
from .life import SERVED, WITHOUT_PROCESS, Residency, WorkerState
from .records import Model
from .refusals import STOPPING
from .state import State

RETIRED = "the model was retired by an operator"


def retire(s: State, model: Model, now: float) -> None:
    """Let a model finish what was accepted before now, then unload it.

    What waits for another load than this one fails: it would bring the model back.
    """
    model.summoned = False
    s.fail_commands(model.spawns, ErrorCode.cancelled, RETIRED, retryable=True)
    if model.state is Residency.loading and model.queue:
        # They were promised their end: settling drains the model as soon as it can serve them.
        model.leaving = s.last_serial
    elif model.state in SERVED:
        for request in list(model.queue.values()):
            if model.leaving is not None and request.serial > model.leaving:
                ending.fail(s, request, now, ErrorCode.cancelled, RETIRED, retryable=True)
        drain(s, model, now, s.limits.drain_timeout_s)
    else:
        retire_now(s, model, now)


def retire_now(s: State, model: Model, now: float) -> None:
    """Fail a model's requests and waiters, and take it out."""
    worker = s.worker_of(model)
    s.fail_commands(model.spawns, ErrorCode.cancelled, RETIRED, retryable=True)
    ending.fail_queued(s, model, now, ErrorCode.cancelled, RETIRED, retryable=True)
    ending.fail_active(s, worker, ErrorCode.cancelled, RETIRED, model=model.name)
    model.summoned = False
    s.touch(worker)
    if model.state is Residency.backoff:
        s.place(model, Residency.absent)
    elif model.state in SERVED | {Residency.loading}:
        residency.leave(s, model, now)
    nobody_waits = not any(other.wanted for other in s.models_of(worker))
    if worker.state is WorkerState.backoff and nobody_waits:
        s.enter(worker, WorkerState.stopped, None)


def drain(s: State, model: Model, now: float, limit_s: float) -> None:
    """Let a model finish what was accepted before now, for at most ``limit_s``."""
    if model.state is Residency.draining:
        model.deadline = min(model.deadline or now + limit_s, now + limit_s)
        return
    model.leaving = s.last_serial if model.leaving is None else model.leaving
    model.drain_began_at = now
    s.note("drain_began", worker=model.worker, model=model.name, limit_s=limit_s)
    s.place(model, Residency.draining, now + limit_s)


def is_drained(s: State, model: Model) -> bool:
    """Whether all that a draining model was to finish is finished."""
    first = next(iter(model.queue.values()), None)
    if first is not None and first.serial <= (model.leaving or 0):
        return False
    return not any(r.model == model.name for r in s.worker_of(model).active.values())


def drain_expired(s: State, model: Model, now: float) -> None:
    """Fail what a draining model did not finish in time, and take it out."""
    code = ErrorCode.shutting_down if s.shutdown_level else ErrorCode.cancelled
    why = STOPPING if s.shutdown_level else model.going or RETIRED
    reason = f"{why}, and its time to finish is over"
    for request in list(model.queue.values()):
        if request.serial <= (model.leaving or 0):
            ending.fail(s, request, now, code, reason, retryable=True)
    worker = s.worker_of(model)
    ending.fail_active(s, worker, code, reason, model=model.name)
    if not s.shutdown_level:
        residency.leave(s, model, now)
    elif worker.state not in WITHOUT_PROCESS and not worker.active:
        stopping.take_down(s, worker, now)
