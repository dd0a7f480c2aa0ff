"""A worker from nothing to alive: spawn, register. What it then loads is in ``residency``."""

from __future__ import annotations

from ...protocol.messages import Registered, Stop
from . import failure, stopping
from .effects import SpawnProcess
from .events import ProcessStarted, ProcessStartFailed
from .life import Cause, WorkerState
from .records import Worker
from .state import State


def spawn(s: State, worker: Worker, now: float) -> None:
    """Begin a new incarnation."""
    s.last_epoch += 1
    worker.epoch = s.last_epoch
    worker.kills = 0
    worker.reason = ""
    again: dict[str, str] = {}
    if worker.failures and worker.cause is not None:
        worker.restarts += 1
        s.metrics.restarts[worker.name, worker.cause] += 1
        again["restarted_after"] = worker.cause
    s.emit(SpawnProcess(worker=worker.name, epoch=worker.epoch, cpu_share=len(s.workers)))
    s.enter(worker, WorkerState.spawning, now + s.limits.spawn_timeout_s, **again)


def started(s: State, worker: Worker, event: ProcessStarted, now: float) -> None:
    """The process exists; it may have become unwanted meanwhile."""
    worker.pid = event.pid
    if worker.state is WorkerState.spawning:
        s.enter(worker, WorkerState.registering, now + s.limits.register_timeout_s)
    elif worker.state is WorkerState.stopping:
        stopping.terminate(s, worker, now)


def start_failed(s: State, worker: Worker, event: ProcessStartFailed, now: float) -> None:
    """There is no process and there will be none."""
    worker.cause = Cause.start_failed
    failure.ended(s, worker, now, f"its process could not be started: {event.reason}")


def registered(s: State, worker: Worker, now: float) -> None:
    """The incarnation speaks: it is alive, and may load."""
    if worker.connected:
        s.counters["worker_protocol_errors"] += 1
        return
    worker.connected = True
    worker.ping_n = 0
    worker.steps = 0
    worker.ping_at = worker.pong_at = worker.moved_at = now
    if worker.state is WorkerState.registering:
        s.order(worker, Registered(epoch=worker.epoch))
        s.enter(worker, WorkerState.loading, None)
    else:
        s.order(worker, Stop(epoch=worker.epoch))
