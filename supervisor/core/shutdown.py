"""The daemon's own end: everything drains, stops, or is killed."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from . import ending, retiring, stopping
from .records import ALIVE, SERVED, WITHOUT_PROCESS, Worker, WorkerState
from .retiring import STOPPING
from .state import State


def shut_down(s: State, now: float, level: int) -> None:
    """Stop everything: 1 drains first, 2 stops at once, 3 kills."""
    if level <= s.shutdown_level:
        return
    s.shutdown_level = level
    s.note("shutdown_asked", level=level)
    for model in s.models.values():
        s.fail_commands(model.spawns, ErrorCode.shutting_down, STOPPING)
        ending.fail_queued(s, model, now, ErrorCode.shutting_down, STOPPING, retryable=True)
    for worker in s.workers.values():
        s.touch(worker)
        if worker.state is WorkerState.backoff:
            s.enter(worker, WorkerState.stopped, None)
        elif level == 1 and worker.state in ALIVE and worker.active:
            drain_all(s, worker, now)
        elif worker.state not in WITHOUT_PROCESS:
            ending.fail_active(s, worker, ErrorCode.shutting_down, STOPPING)
            if level <= 2:
                stopping.take_down(s, worker, now)
            else:
                stopping.kill(s, worker, now)


def drain_all(s: State, worker: Worker, now: float) -> None:
    """Let a worker finish what it computes; settling it takes it down when that is done."""
    for model in s.models_of(worker):
        if model.state in SERVED:
            retiring.drain(s, model, now, s.limits.shutdown_drain_s)
