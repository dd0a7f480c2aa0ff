"""Whether a worker is alive and moving: pings, pongs, and the limits of each state."""

from __future__ import annotations

from math import inf

from ...protocol.messages import Ping, Pong
from . import failure
from .life import ALIVE, Cause, Phase
from .records import Worker
from .state import State

ROUND_SHARE = 0.25
"""Of the interval between two pings of a worker: so much earlier it may come, beside others'."""


def pong(s: State, worker: Worker, header: Pong, now: float) -> None:
    """The I/O thread lives; whether the engine moves is in ``steps``."""
    worker.pong_at = now
    if header.memory_bytes:
        s.measured = s.measured or header.memory_bytes > worker.memory_bytes
        if s.callers and header.memory_bytes < worker.memory_bytes:
            s.touch(worker)
        worker.memory_bytes = header.memory_bytes
        if not is_loading(s, worker):
            worker.settled_bytes = header.memory_bytes
    if header.steps != worker.steps:
        worker.steps = header.steps
        worker.moved_at = now


def look(s: State, worker: Worker, now: float, ping_until: float) -> None:
    """Act on answers that did not come, and ask the health question if due by ``ping_until``."""
    if worker.state not in ALIVE:
        return
    if pong_deadline(s, worker) <= now:
        reason = f"answered no ping for {now - worker.pong_at:.0f} s"
        failure.lose(s, worker, now, Cause.silent, reason)
    elif stall_deadline(s, worker) <= now:
        reason = f"made no step for {now - worker.moved_at:.0f} s"
        failure.lose(s, worker, now, Cause.stalled, reason)
    elif ping_due(s, worker) <= ping_until:
        worker.ping_n += 1
        worker.ping_at = now
        s.order(worker, Ping(epoch=worker.epoch, n=worker.ping_n))


def round_end(s: State, now: float) -> float:
    """Up to which moment pings go out now: if one is due, those soon due go along with it.

    So we are woken a few times an interval, however many workers there are.
    """
    if any(ping_due(s, worker) <= now for worker in s.workers.values()):
        return now + s.limits.ping_interval_s * ROUND_SHARE
    return now


def ping_due(s: State, worker: Worker) -> float:
    """When the next ping goes out."""
    return worker.ping_at + s.limits.ping_interval_s if worker.state in ALIVE else inf


def pong_deadline(s: State, worker: Worker) -> float:
    """When a worker has been silent for too long; loading may hold the interpreter longer."""
    if worker.state not in ALIVE:
        return inf
    limit_s = s.limits.pong_timeout_s
    if is_loading(s, worker):
        limit_s = max(limit_s, s.limits.loading_pong_timeout_s)
    return worker.pong_at + limit_s


def stall_deadline(s: State, worker: Worker) -> float:
    """When an engine that has something to do has stood still for too long."""
    if worker.state not in ALIVE:
        return inf
    able = [request for request in worker.active.values() if request.has_credit]
    if all(request.phase is Phase.ended for request in able):
        return inf
    # An ended one counts until its worker lets go of it: the engine may be in its prompt still.
    prefilling = any(request.next_seq == 0 for request in able)
    limit_s = s.limits.prefill_stall_s if prefilling else s.limits.decode_stall_s
    if is_loading(s, worker):
        # Others take their steps between those of the load: while it is silent, all are.
        limit_s = max(limit_s, s.limits.load_stall_s)
    return worker.moved_at + limit_s


def is_loading(s: State, worker: Worker) -> bool:
    """Whether a load has a worker's engine."""
    return any(model.ordered for model in s.models_of(worker))
