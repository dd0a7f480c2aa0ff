"""What is done about a worker that failed: classify once, back off, or give up."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ..config.restarts import pause_s, recent
from ..exit_statuses import EXIT_CONFIGURATION
from ..process_ends import described, last_words
from . import ending, vacancy
from .effects import SignalProcess
from .events import WorkerExited
from .life import ALIVE, Cause, Residency, WorkerState
from .records import SENTENCE_CHARACTERS, Worker
from .state import State


def exited(s: State, worker: Worker, event: WorkerExited, now: float) -> None:
    """A process is gone. Whatever it was doing is answered before anything else."""
    asked = worker.state is WorkerState.stopping
    worker.last_lines = "" if asked else event.log_tail[-SENTENCE_CHARACTERS:]
    s.note(
        "worker_exited",
        worker=worker.name,
        epoch=worker.epoch,
        status=event.status,
        state=worker.state,
        last_lines=worker.last_lines,
    )
    reason = worker.reason or described(event.status)
    if worker.state is not WorkerState.lost:
        worker.cause = None if asked else cause_of(event.status)
    if asked:
        gone(s, worker, now, "the worker of this model was stopped")
        s.enter(worker, WorkerState.stopped, None)
        return
    words = last_words(event.log_tail)
    if words:
        reason = f"{reason}; its last words: {words}"
    ended(s, worker, now, reason, final=event.status == EXIT_CONFIGURATION)


def cause_of(status: int) -> Cause:
    """An exit status in a word."""
    if status == EXIT_CONFIGURATION:
        return Cause.unusable
    if status < 0:
        return Cause.killed
    return Cause.exited if status else Cause.left


def lose(s: State, worker: Worker, now: float, cause: Cause, reason: str) -> None:
    """Give a worker up whose process is still there: answer its clients, then kill it."""
    recall(s, worker)
    worker.cause = cause
    worker.reason = reason
    ending.fail_active(s, worker, ErrorCode.worker_lost, f"the worker of this model {reason}")
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="kill"))
    s.counters["workers_killed"] += 1
    worker.kills += 1
    vacancy.go_along(s, worker)
    until = now + s.limits.kill_timeout_s
    s.enter(worker, WorkerState.lost, until, cause=cause, reason=reason)


def unreachable(s: State, worker: Worker, now: float) -> None:
    """A message could not be delivered: either the worker is about to be seen dead, or lost."""
    if worker.state in ALIVE:
        lose(s, worker, now, Cause.unreachable, "closed its connection")


def kill_again(s: State, worker: Worker, now: float) -> None:
    """Repeat the kill of a lost worker that is still there."""
    worker.kills += 1
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="kill"))
    s.enter(worker, WorkerState.lost, now + s.limits.kill_timeout_s)


def ended(s: State, worker: Worker, now: float, reason: str, *, final: bool = False) -> None:
    """A worker is gone that should not be: restart it later, if that may help and it is wanted."""
    recall(s, worker)
    stopped = any(model.retires for model in s.models_of(worker))
    gone(s, worker, now, f"the worker of this model {reason}")
    s.counters["worker_failures"] += 1
    worker.failures = recent(worker.failures, now, s.limits)
    worker.reason = reason
    for model in s.models_of(worker):
        s.fail_commands(model.spawns, ErrorCode.load_failed, f"the worker of {model.name} {reason}")
    if s.shutdown_level or (stopped and len(worker.models) == 1):
        s.enter(worker, WorkerState.stopped, None)
    elif final:
        give_up(s, worker, reason)
    else:
        back_off(s, worker, now)


def recall(s: State, worker: Worker) -> None:
    """Pinned models come back although nobody waits for them, but for those being retired."""
    for model in s.models_of(worker):
        here = model.state in (Residency.loading, Residency.ready)
        if here and model.pinned and not model.retires:
            model.summoned = True


def gone(s: State, worker: Worker, now: float, message: str) -> None:
    """Clear a worker's row of what belonged to its process."""
    ending.fail_active(s, worker, ErrorCode.worker_lost, message)
    if worker.ready_at is not None and now - worker.ready_at >= s.limits.stable_s:
        worker.failures.clear()
    worker.pid = None
    worker.connected = False
    worker.ready_at = None
    worker.memory_bytes = worker.settled_bytes = 0
    for model in s.models_of(worker):
        vacancy.vacate(s, model)


def back_off(s: State, worker: Worker, now: float) -> None:
    """Wait before the next incarnation, longer after each failure; or give up."""
    wait_s = pause_s(worker.failures, s.limits, s.random())
    if wait_s is None:
        give_up(s, worker, worker.reason)
        return
    why = {"cause": worker.cause or "", "reason": worker.reason, "delay_s": round(wait_s, 3)}
    s.enter(worker, WorkerState.backoff, now + wait_s, **why)


def give_up(s: State, worker: Worker, reason: str) -> None:
    """Keep a worker down until an operator spawns it."""
    worker.reason = reason
    for model in s.models_of(worker):
        model.summoned = False
    s.enter(worker, WorkerState.fatal, None, cause=worker.cause or "", reason=reason)
