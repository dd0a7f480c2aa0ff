"""The daemon's own end: everything drains, stops, or is killed."""

from __future__ import annotations

from collections import Counter

from ...protocol.errors import ErrorCode
from ...protocol.messages import Accepted
from . import ending, reading, retiring, stopping
from .life import ALIVE, SERVED, WITHOUT_PROCESS, Phase, StopStep, WorkerState
from .records import SENTENCE_CHARACTERS, Worker
from .refusals import STOPPING
from .state import State

HURRIED = 2
"""The level of a second signal: nobody waits for running requests any more."""

KILLS_BEFORE_LEAVING = 10
"""A process that so many SIGKILLs did not end hangs in the kernel: the next daemon sweeps it."""


def shut_down(s: State, now: float, level: int) -> None:
    """Stop everything: 1 drains first, 2 stops at once, 3 kills."""
    if level <= s.shutdown_level:
        return
    s.shutdown_level = level
    s.note("shutdown_asked", level=level)
    reading.give_up(s)
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
            take_down(s, worker, now)


def take_down(s: State, worker: Worker, now: float) -> None:
    """Have a worker leave, as urgently as was asked for; it was polite to it once."""
    politely = worker.state is WorkerState.stopping and worker.stop_step is StopStep.polite
    if s.shutdown_level > HURRIED:
        stopping.kill(s, worker, now)
    elif s.shutdown_level == HURRIED and politely:
        stopping.terminate(s, worker, now)
    else:
        stopping.take_down(s, worker, now)


def drain_all(s: State, worker: Worker, now: float) -> None:
    """Let a worker finish what it computes; settling it takes it down when that is done."""
    for model in s.models_of(worker):
        if model.state in SERVED:
            retiring.drain(s, model, now, s.limits.shutdown_drain_s)


def is_over(s: State) -> bool:
    """Whether nothing is left that could be waited for."""
    left = [worker for worker in s.workers.values() if worker.state not in WITHOUT_PROCESS]
    if any(worker.kills < KILLS_BEFORE_LEAVING for worker in left):
        return False
    for worker in left:
        s.note("worker_left_behind", worker=worker.name, epoch=worker.epoch, pid=worker.pid or 0)
    return True


def tell(s: State) -> None:
    """Tell those who commanded the stop what it still waits for, when that has changed."""
    sentence = waits_for(s)[:SENTENCE_CHARACTERS] if s.shutdowns else ""
    if sentence != s.shutdown_told:
        s.shutdown_told = sentence
        for command in s.shutdowns:
            s.tell(command.peer, Accepted(id=command.id, waits_for=sentence))


def waits_for(s: State) -> str:
    """What the daemon's end waits for, in words."""
    running = Counter(
        request.model
        for worker in s.workers.values()
        for request in worker.active.values()
        if request.phase is not Phase.ended
    )
    if running:
        models = ", ".join(running)
        plural = "" if running.total() == 1 else "s"
        return f"{running.total()} running request{plural} of {models}"
    leaving = [w.name for w in s.workers.values() if w.state not in WITHOUT_PROCESS]
    return f"the end of the worker{'' if len(leaving) == 1 else 's'} {', '.join(leaving)}"
