"""What time alone brings about."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ...protocol.errors import ErrorCode
from ...protocol.messages import Accepted
from . import (
    admission,
    announcing,
    commands,
    ending,
    eviction,
    failure,
    health,
    inspecting,
    reading,
    retiring,
    stopping,
)
from .life import Cause, Phase, Residency, WorkerState
from .records import Model, Request, Worker
from .refusals import CANCELLED
from .state import State

PAUSE_S = 2.0
"""A longer gap between two ticks is a pause of ours (sleep, a stopped process), not a hang."""


def passed(s: State, now: float) -> None:
    """Act on every deadline that is over."""
    gap_s = 0.0 if s.ticked_at is None else now - s.ticked_at
    s.ticked_at = now
    if gap_s > PAUSE_S:
        forgive(s, gap_s)
    for request in list(s.requests.values()):
        if request_deadline(s, request) <= now:
            request_expired(s, request, now)
        elif keepalive_due(s, request) <= now:
            keep_alive(s, request, now)
    ping_until = health.round_end(s, now)
    for worker in s.workers.values():
        commands.questions_expired(s, worker, now)
        if worker.deadline is not None and worker.deadline <= now:
            worker_expired(s, worker, now)
        else:
            health.look(s, worker, now, ping_until)
    for model in s.models.values():
        if model.deadline is not None and model.deadline <= now:
            model_expired(s, model, now)
        elif eviction.idle_until(s, model) <= now:
            eviction.evict(s, model, "idle", "", now)
    admission.consider(s, now)
    reading.expired(s, now)


def forgive(s: State, gap_s: float) -> None:
    """Nobody could answer while we ourselves did not run: move the workers' limits."""
    s.counters["pauses"] += 1
    s.note("paused", gap_s=round(gap_s, 3))
    for worker in s.workers.values():
        worker.pong_at += gap_s
        worker.moved_at += gap_s
        if worker.deadline is not None and worker.state is not WorkerState.backoff:
            worker.deadline += gap_s
        for request in worker.active.values():
            if request.due_at is not None:
                request.due_at += gap_s
        for question in worker.questions.values():
            moved = replace(question, due_at=question.due_at + gap_s)
            worker.questions[question.id] = moved
    for model in s.models.values():
        if model.deadline is not None and model.state is not Residency.backoff:
            model.deadline += gap_s
    for asked in s.readings:
        if asked.due_at is not None:
            asked.due_at += gap_s


def worker_expired(s: State, worker: Worker, now: float) -> None:
    """End a state that has lasted as long as it may."""
    match worker.state:
        case WorkerState.spawning:
            failure.lose(s, worker, now, Cause.start_timeout, "did not start in time")
        case WorkerState.registering:
            reason = "started but did not register in time"
            failure.lose(s, worker, now, Cause.register_timeout, reason)
        case WorkerState.stopping:
            stopping.press(s, worker, now)
        case WorkerState.lost:
            failure.kill_again(s, worker, now)
        case WorkerState.backoff:
            s.enter(worker, WorkerState.stopped, None)
        case _:
            pass  # what happens ends these, not time


def model_expired(s: State, model: Model, now: float) -> None:
    """End a model's state that has lasted as long as it may."""
    worker = s.worker_of(model)
    match model.state:
        case Residency.loading:
            limit_s = s.limits.load_stall_s
            reason = f"made no progress loading {model.name} for {limit_s:.0f} s"
            failure.lose(s, worker, now, Cause.load_stalled, reason)
        case Residency.unloading:
            reason = f"did not unload {model.name} in time"
            failure.lose(s, worker, now, Cause.unload_timeout, reason)
        case Residency.draining:
            retiring.drain_expired(s, model, now)
        case Residency.backoff:
            s.place(model, Residency.absent)
        case Residency.absent:
            inspecting.timed_out(s, model)
        case Residency.ready | Residency.fatal:
            pass  # what happens ends these, not time


def request_deadline(s: State, request: Request) -> float:
    """When something must be decided about a request."""
    own = inf if request.deadline_at is None else request.deadline_at
    match request.phase:
        case Phase.queued:
            return own
        case Phase.running:
            return own + s.limits.deadline_grace_s
        case Phase.cancelling | Phase.ended:
            return inf if request.due_at is None else request.due_at


def request_expired(s: State, request: Request, now: float) -> None:
    """End a request whose time is over, or a worker that will not let go of it."""
    match request.phase:
        case Phase.queued:
            waited = f"waited {now - request.accepted_at:.1f} s and its deadline is over"
            ending.fail(s, request, now, ErrorCode.deadline, waited)
        case Phase.running:
            ending.fail(s, request, now, ErrorCode.deadline, "its deadline is over")
        case Phase.cancelling:
            ending.fail(s, request, now, ErrorCode.cancelled, CANCELLED)
        case Phase.ended:
            worker = s.workers[request.worker]
            if worker.active.get(request.id) is request:
                reason = "did not let go of a request that had ended"
                failure.lose(s, worker, now, Cause.kept_request, reason)


def keepalive_due(s: State, request: Request) -> float:
    """When a silent request's client is told of it again, which also finds clients gone."""
    return inf if request.phase is Phase.ended else request.told_at + s.limits.keepalive_s


def keep_alive(s: State, request: Request, now: float) -> None:
    """Say again where a request stands."""
    if request.phase is not Phase.queued:
        request.told_at = now
        s.tell(request.peer, Accepted(id=request.id))
        return
    queue = s.models[request.model].queue
    position = next(n for n, id in enumerate(queue, start=1) if id == request.id)
    announcing.tell_position(s, request, position, request.told, now)


def next_deadline(s: State) -> float:
    """The earliest moment at which time alone changes anything."""
    moments = [reading.due_at(s)]
    moments.append(admission.next_look(s, s.ticked_at or 0.0))
    for model in s.models.values():
        moments.append(eviction.idle_until(s, model))
        if model.deadline is not None:
            moments.append(model.deadline)
    for worker in s.workers.values():
        moments += (
            inf if worker.deadline is None else worker.deadline,
            health.ping_due(s, worker),
            health.pong_deadline(s, worker),
            health.stall_deadline(s, worker),
            *(question.due_at for question in worker.questions.values()),
        )
    for request in s.requests.values():
        moments += (request_deadline(s, request), keepalive_due(s, request))
    return min(moments)
