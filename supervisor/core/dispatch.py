"""Settling a worker after an event: who gets a place, who is told, what begins or ends."""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.errors import ErrorCode
from ...protocol.messages import Accepted, Assign
from . import ending, starting, stopping
from .intake import fatal_sentence
from .records import SENTENCE_CHARACTERS, SERVING, Phase, Request, Worker, WorkerState
from .state import State


def settle(s: State, worker: Worker, now: float) -> None:
    """Make a worker's row consistent with who waits for it; leases come before announcements."""
    state = worker.state
    if state is WorkerState.stopped:
        s.complete_commands(worker.retires)
        if not s.shutdown_level and s.wanted(worker):
            starting.spawn(s, worker, now)
    elif state in SERVING:
        serve(s, worker, now)
    elif state is WorkerState.draining:
        assign(s, worker, now)
        if not worker.active:
            stopping.take_down(s, worker, now)
    elif state is WorkerState.backoff:
        s.complete_commands(worker.retires)
        refuse_long_wait(s, worker, now)
    elif state is WorkerState.fatal:
        s.complete_commands(worker.retires)
        for model in s.models_of(worker):
            sentence = fatal_sentence(model.name, worker.reason)
            s.fail_commands(model.spawns, ErrorCode.load_failed, sentence)
            ending.fail_queued(s, worker, now, ErrorCode.load_failed, sentence)
    announce(s, worker, now)


def serve(s: State, worker: Worker, now: float) -> None:
    """Give a serving worker its work; then those who wait for the model itself are told."""
    assign(s, worker, now)
    worker.state = WorkerState.busy if worker.active else WorkerState.ready
    for model in s.models_of(worker):
        s.complete_commands(model.spawns)
    if worker.retires:
        # Retired while it was loading, with requests that were promised their end.
        s.enter(worker, WorkerState.draining, now + s.limits.drain_timeout_s)


def assign(s: State, worker: Worker, now: float) -> None:
    """Lease a worker's free places to those who have waited longest."""
    for request in list(waiting(s, worker)):
        if len(worker.active) >= s.limits.active_requests_per_worker:
            return
        leaving = worker.state is WorkerState.draining or worker.retires
        if leaving and request.serial > worker.drain_serial:
            return
        lease(s, worker, request, now)


def waiting(s: State, worker: Worker) -> Iterator[Request]:
    """All that wait for one of a worker's models, oldest first."""
    if len(worker.models) == 1:
        return iter(s.models[worker.models[0]].queue.values())
    every = (r for model in s.models_of(worker) for r in model.queue.values())
    return iter(sorted(every, key=lambda request: request.serial))


def lease(s: State, worker: Worker, request: Request, now: float) -> None:
    """Give a request its place: from here on it belongs to this incarnation."""
    body = request.body
    ending.dequeue(s, request)
    if not worker.active:
        worker.moved_at = now
    request.phase = Phase.running
    request.worker = worker.name
    request.epoch = worker.epoch
    worker.active[request.id] = request
    waited_s = now - request.accepted_at
    ready_at = worker.ready_at if worker.ready_at is not None else now
    load_s = max(0.0, ready_at - max(request.accepted_at, worker.spawned_at))
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


def refuse_long_wait(s: State, worker: Worker, now: float) -> None:
    """Nobody waits for a restart that is far away."""
    left_s = (worker.deadline or now) - now
    if left_s <= s.limits.backoff_wait_s:
        return
    for model in s.models_of(worker):
        sentence = f"model {model.name} restarts in {left_s:.0f} s: its worker {worker.reason}"
        ending.fail_queued(
            s,
            worker,
            now,
            ErrorCode.worker_restarting,
            sentence,
            retryable=True,
            retry_after_s=left_s,
        )


def announce(s: State, worker: Worker, now: float) -> None:
    """Tell those who wait what they wait for, when that changed."""
    for model in s.models_of(worker):
        if not model.queue:
            continue
        sentence = waits_for(model.name, worker)[:SENTENCE_CHARACTERS]
        for position, request in enumerate(model.queue.values(), start=1):
            if request.told != sentence:
                tell_position(s, request, position, sentence, now)


def tell_position(s: State, request: Request, position: int, sentence: str, now: float) -> None:
    """Tell one waiting request's client where it stands."""
    request.told = sentence
    request.told_at = now
    s.tell(request.peer, Accepted(id=request.id, position=position, waits_for=sentence))


def waits_for(name: str, worker: Worker) -> str:
    """What the queue of a model waits for, in words."""
    match worker.state:
        case WorkerState.stopped | WorkerState.spawning | WorkerState.registering:
            return f"the worker of {name} is starting"
        case WorkerState.loading:
            return f"{name} is loading"
        case WorkerState.ready | WorkerState.busy:
            return f"a free place: {name} computes as many requests as it may"
        case WorkerState.draining | WorkerState.stopping:
            return f"{name} was retired; it is loaded again when its worker is gone"
        case WorkerState.lost | WorkerState.backoff | WorkerState.fatal:
            return f"{name} is restarted: its worker {worker.reason}"
