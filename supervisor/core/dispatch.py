"""Settling a worker after an event: who gets a place, who is told, what begins or ends."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from ...protocol.errors import ErrorCode
from ...protocol.messages import Accepted, Assign
from . import ending, placement, residency, retiring, starting, stopping
from .announcing import announce
from .life import ALIVE, OUTSIDE, SERVED, Phase, Residency, WorkerState
from .records import Model, Request, Worker
from .refusals import given_up
from .state import State


def settle(s: State, worker: Worker, now: float) -> None:
    """Make a worker's row consistent with who waits for it; leases come before announcements."""
    if placement.remove_if_empty(s, worker):
        return
    match worker.state:
        case WorkerState.stopped:
            if any(model.state is Residency.loading for model in s.models_of(worker)):
                starting.spawn(s, worker, now)
        case WorkerState.loading | WorkerState.ready | WorkerState.busy:
            serve(s, worker, now)
        case WorkerState.backoff:
            for model in s.models_of(worker):
                refuse_long_wait(s, model, worker.deadline, f"its worker {worker.reason}", now)
        case WorkerState.fatal:
            for model in s.models_of(worker):
                refuse_all(s, model, worker.reason, now)
        case _:
            pass
    for model in s.models_of(worker):
        settle_model(s, model, now)


def settle_model(s: State, model: Model, now: float) -> None:
    """Answer who waits for a model what can be answered now."""
    if model.state is Residency.backoff:
        refuse_long_wait(s, model, model.deadline, model.reason, now)
    elif model.state is Residency.fatal:
        refuse_all(s, model, model.reason, now)
    if model.state in OUTSIDE:
        s.complete_commands(model.retires)
    announce(s, model, now)


def serve(s: State, worker: Worker, now: float) -> None:
    """Give a living worker its work; then those who wait for the models themselves are told."""
    assign(s, worker, now)
    for model in s.models_of(worker):
        if model.state is Residency.ready:
            if model.leaving is None:
                s.complete_commands(model.spawns)
            else:
                # Retired while it was loading, with requests that were promised their end; who
                # commanded a load since then gets the next one.
                retiring.drain(s, model, now, s.limits.drain_timeout_s)
        elif model.state is Residency.draining and retiring.is_drained(s, model):
            residency.leave(s, model, now)
    if worker.state in ALIVE:
        residency.order_next(s, worker, now)
        rest(s, worker, now)


def rest(s: State, worker: Worker, now: float) -> None:
    """Say what a living worker does; one that nobody needs any more is stopped."""
    models = list(s.models_of(worker))
    if worker.active:
        worker.state = WorkerState.busy
    elif s.shutdown_level or not any(residency.stays(s, model) for model in models):
        stopping.take_down(s, worker, now)
    else:
        served = any(model.state in SERVED for model in models)
        worker.state = WorkerState.ready if served else WorkerState.loading


def assign(s: State, worker: Worker, now: float) -> None:
    """Lease a worker's free places to those who have waited longest."""
    free = max(0, s.limits.active_requests_per_worker - len(worker.active))
    for request in list(islice(waiting(s, worker), free)):
        lease(s, worker, request, now)


def waiting(s: State, worker: Worker) -> Iterator[Request]:
    """All that a worker may compute and does not yet, oldest first."""
    queues = [promised(m) for m in s.models_of(worker) if m.state in SERVED and m.queue]
    return merge(*queues, key=lambda request: request.serial)


def promised(model: Model) -> Iterator[Request]:
    """Who waits for a model that will still be served by it."""
    for request in model.queue.values():
        if model.leaving is not None and request.serial > model.leaving:
            return
        yield request


def lease(s: State, worker: Worker, request: Request, now: float) -> None:
    """Give a request its place: from here on it belongs to this incarnation."""
    body = request.body
    ending.dequeue(s, request)
    if not worker.active:
        worker.moved_at = now
    request.phase = Phase.running
    request.worker = worker.name
    request.epoch = worker.epoch
    request.leased_at = now
    worker.active[request.id] = request
    waited_s = now - request.accepted_at
    model = s.models[request.model]
    load_s = max(0.0, model.ready_at - max(request.accepted_at, model.began_at))
    s.metrics.models[request.model].queue_wait.observe(waited_s)
    left_s = None if request.deadline_at is None else max(0.0, request.deadline_at - now)
    s.order(
        worker,
        Assign(
            id=request.id,
            epoch=worker.epoch,
            model=request.model,
            credit=request.granted,
            deadline_ms=None if left_s is None else int(left_s * 1000),
            queued_ms=int(max(0.0, waited_s - load_s) * 1000),
            load_ms=int(load_s * 1000),
        ),
        body,
    )
    request.told_at = now
    s.tell(request.peer, Accepted(id=request.id))


def refuse_long_wait(s: State, model: Model, until: float | None, reason: str, now: float) -> None:
    """Nobody waits for a restart that is far away."""
    left_s = (until or now) - now
    if model.queue and left_s > s.limits.backoff_wait_s:
        sentence = f"model {model.name} restarts in {left_s:.0f} s: {reason}"
        code = ErrorCode.worker_restarting
        ending.fail_queued(s, model, now, code, sentence, retryable=True, retry_after_s=left_s)


def refuse_all(s: State, model: Model, reason: str, now: float) -> None:
    """Nobody waits for what was given up."""
    if model.wanted:
        sentence = given_up(model.name, reason)
        s.fail_commands(model.spawns, ErrorCode.load_failed, sentence)
        ending.fail_queued(s, model, now, ErrorCode.load_failed, sentence)
