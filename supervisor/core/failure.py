"""What is done about a worker that failed: classify once, back off, or give up."""

from __future__ import annotations

from signal import Signals

from ...protocol.errors import ErrorCode
from . import ending, vacancy
from .effects import SignalProcess
from .events import WorkerExited
from .records import ALIVE, Residency, Worker, WorkerState
from .state import State

EXIT_CONFIGURATION = 78
"""Exit status of a worker that must not be restarted (EX_CONFIG of sysexits.h)."""


def exited(s: State, worker: Worker, event: WorkerExited, now: float) -> None:
    """A process is gone. Whatever it was doing is answered before anything else."""
    s.note(
        "worker_exited",
        worker=worker.name,
        epoch=worker.epoch,
        status=event.status,
        state=worker.state,
    )
    reason = worker.reason or described(event.status)
    if worker.state is WorkerState.stopping:
        gone(s, worker, now, f"the worker of this model {reason}")
        s.enter(worker, WorkerState.stopped, None)
        return
    words = last_words(event.log_tail)
    if words:
        reason = f"{reason}; its last words: {words}"
    if event.status == EXIT_CONFIGURATION:
        gone(s, worker, now, f"the worker of this model {reason}")
        give_up(s, worker, reason)
        return
    ended(s, worker, now, reason)


def last_words(log_tail: str) -> str:
    """The last line of a log, if it tells of trouble: routine lines explain nothing."""
    lines = log_tail.strip().splitlines()
    return "" if not lines or " INFO " in lines[-1] else lines[-1][-500:]


def described(status: int) -> str:
    """An exit status in words."""
    if status == 0:
        return "left without being asked"
    if status == EXIT_CONFIGURATION:
        return "found its configuration unusable (exit status 78)"
    if status < 0:
        try:
            return f"was killed by {Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def lose(s: State, worker: Worker, now: float, reason: str) -> None:
    """Give a worker up whose process is still there: answer its clients, then kill it."""
    recall(s, worker)
    s.note("worker_given_up", worker=worker.name, epoch=worker.epoch, reason=reason)
    worker.reason = reason
    ending.fail_active(s, worker, ErrorCode.worker_lost, f"the worker of this model {reason}")
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="kill"))
    s.counters["workers_killed"] += 1
    vacancy.go_along(s, worker)
    s.enter(worker, WorkerState.lost, now + s.limits.kill_timeout_s)


def unreachable(s: State, worker: Worker, now: float) -> None:
    """A message could not be delivered: either the worker is about to be seen dead, or lost."""
    if worker.state in ALIVE:
        lose(s, worker, now, "closed its connection")


def kill_again(s: State, worker: Worker, now: float) -> None:
    """Repeat the kill of a lost worker that is still there."""
    s.emit(SignalProcess(worker=worker.name, epoch=worker.epoch, signal="kill"))
    s.enter(worker, WorkerState.lost, now + s.limits.kill_timeout_s)


def ended(s: State, worker: Worker, now: float, reason: str) -> None:
    """A worker is gone that should not be: restart it later, if it is wanted then."""
    recall(s, worker)
    stopped = any(model.retires for model in s.models_of(worker))
    gone(s, worker, now, f"the worker of this model {reason}")
    s.counters["worker_failures"] += 1
    worker.failures = recent(s, worker.failures, now)
    worker.reason = reason
    for model in s.models_of(worker):
        s.fail_commands(model.spawns, ErrorCode.load_failed, f"the worker of {model.name} {reason}")
    if s.shutdown_level or (stopped and len(worker.models) == 1):
        s.enter(worker, WorkerState.stopped, None)
    else:
        back_off(s, worker, now)


def recall(s: State, worker: Worker) -> None:
    """Pinned models come back although nobody waits for them."""
    for model in s.models_of(worker):
        if model.pinned and model.state in (Residency.loading, Residency.ready):
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


def recent(s: State, failures: list[float], now: float) -> list[float]:
    """The failures that still count, with one of now."""
    begin = now - s.limits.failure_window_s
    return [at for at in failures if at > begin] + [now]


def back_off(s: State, worker: Worker, now: float) -> None:
    """Wait before the next incarnation, longer after each failure; or give up."""
    tries = len(worker.failures)
    if tries >= s.limits.failures_before_fatal:
        give_up(s, worker, worker.reason)
        return
    s.enter(worker, WorkerState.backoff, now + wait_s(s, tries))


def wait_s(s: State, tries: int) -> float:
    """How long to wait after so many failures in a row, with jitter."""
    longest_s = min(s.limits.backoff_limit_s, s.limits.backoff_first_s * 2.0 ** (tries - 1))
    return longest_s * (0.5 + s.random() / 2)


def give_up(s: State, worker: Worker, reason: str) -> None:
    """Keep a worker down until an operator spawns it."""
    worker.reason = reason
    for model in s.models_of(worker):
        model.summoned = False
    s.note("worker_fatal_reason", worker=worker.name, reason=reason[-500:])
    s.enter(worker, WorkerState.fatal, None)
