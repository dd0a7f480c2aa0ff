"""A worker from alive to nothing: polite stop, SIGTERM, SIGKILL."""

from __future__ import annotations

from ...protocol.messages import Stop
from . import vacancy
from .effects import SignalProcess
from .life import WITHOUT_PROCESS, StopStep, WorkerState
from .records import Worker
from .state import State


def take_down(s: State, worker: Worker, now: float) -> None:
    """Begin the stop of a worker that has nothing left to do."""
    if worker.state in WITHOUT_PROCESS | {WorkerState.stopping, WorkerState.lost}:
        return
    vacancy.go_along(s, worker)
    if worker.connected:
        worker.stop_step = StopStep.polite
        s.order(worker, Stop(epoch=worker.epoch))
        until = now + s.limits.stop_timeout_s
        s.enter(worker, WorkerState.stopping, until, how=worker.stop_step.value)
    else:
        terminate(s, worker, now)


def press(s: State, worker: Worker, now: float) -> None:
    """Press a stopping worker harder: its deadline is over."""
    if worker.stop_step is StopStep.polite:
        terminate(s, worker, now)
    else:
        kill(s, worker, now)


def terminate(s: State, worker: Worker, now: float) -> None:
    """Ask by signal."""
    worker.stop_step = StopStep.terminate
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="terminate"))
    until = now + s.limits.terminate_timeout_s
    s.enter(worker, WorkerState.stopping, until, how=worker.stop_step.value)


def kill(s: State, worker: Worker, now: float) -> None:
    """Ask no more. Repeated while the process is there: a kernel may take its time."""
    vacancy.go_along(s, worker)
    worker.stop_step = StopStep.kill
    worker.kills += 1
    s.counters["workers_killed"] += 1
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="kill"))
    until = now + s.limits.kill_timeout_s
    s.enter(worker, WorkerState.stopping, until, how=worker.stop_step.value)
