"""From ready to nothing: drain, polite stop, SIGTERM, SIGKILL; and the daemon's own end."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import Stop
from . import ending
from .effects import SignalProcess
from .records import SERVING, WITHOUT_PROCESS, StopStep, Worker, WorkerState
from .state import State

RETIRED = "the model was retired by an operator"
STOPPING = "the daemon is stopping"


def drain(s: State, worker: Worker, now: float, limit_s: float) -> None:
    """Let a worker finish what was accepted before now, for at most ``limit_s``."""
    worker.drain_serial = s.last_serial
    s.enter(worker, WorkerState.draining, now + limit_s)


def retire_now(s: State, worker: Worker, now: float) -> None:
    """Fail a worker's requests and waiters, and take it down."""
    for model in s.models_of(worker):
        s.fail_commands(model.spawns, ErrorCode.cancelled, RETIRED, retryable=True)
    ending.fail_queued(s, worker, now, ErrorCode.cancelled, RETIRED, retryable=True)
    ending.fail_active(s, worker, ErrorCode.cancelled, RETIRED)
    take_down(s, worker, now)


def drain_expired(s: State, worker: Worker, now: float) -> None:
    """Fail what a draining worker did not finish in time, and take it down."""
    code = ErrorCode.shutting_down if s.shutdown_level else ErrorCode.cancelled
    reason = f"{STOPPING if s.shutdown_level else RETIRED}, and its time to finish is over"
    for model in s.models_of(worker):
        for request in list(model.queue.values()):
            if request.serial <= worker.drain_serial:
                ending.fail(s, request, now, code, reason, retryable=True)
    ending.fail_active(s, worker, code, reason)
    take_down(s, worker, now)


def take_down(s: State, worker: Worker, now: float) -> None:
    """Begin the stop of a worker that has nothing left to do."""
    if worker.state is WorkerState.backoff:
        s.enter(worker, WorkerState.stopped, None)
    if worker.state in WITHOUT_PROCESS | {WorkerState.stopping, WorkerState.lost}:
        return
    if worker.connected:
        worker.stop_step = StopStep.polite
        s.order(worker, Stop(epoch=worker.epoch))
        s.enter(worker, WorkerState.stopping, now + s.limits.stop_timeout_s)
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
    s.enter(worker, WorkerState.stopping, now + s.limits.terminate_timeout_s)


def kill(s: State, worker: Worker, now: float) -> None:
    """Ask no more. Repeated while the process is there: a kernel may take its time."""
    worker.stop_step = StopStep.kill
    s.counters["workers_killed"] += 1
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="kill"))
    s.enter(worker, WorkerState.stopping, now + s.limits.kill_timeout_s)


def shut_down(s: State, now: float, level: int) -> None:
    """Stop everything: 1 drains first, 2 stops at once, 3 kills."""
    if level <= s.shutdown_level:
        return
    s.shutdown_level = level
    s.note("shutdown_asked", level=level)
    for worker in s.workers.values():
        s.touch(worker)
        for model in s.models_of(worker):
            s.fail_commands(model.spawns, ErrorCode.shutting_down, STOPPING)
        ending.fail_queued(s, worker, now, ErrorCode.shutting_down, STOPPING, retryable=True)
        if worker.state in WITHOUT_PROCESS:
            take_down(s, worker, now)
        elif level == 1 and worker.state in SERVING:
            drain(s, worker, now, s.limits.shutdown_drain_s)
        elif level == 1 and worker.state is WorkerState.draining:
            limit_s = s.limits.shutdown_drain_s
            worker.deadline = min(worker.deadline or now + limit_s, now + limit_s)
        elif level <= 2:
            ending.fail_active(s, worker, ErrorCode.shutting_down, STOPPING)
            take_down(s, worker, now)
        else:
            ending.fail_active(s, worker, ErrorCode.shutting_down, STOPPING)
            kill(s, worker, now)
