"""Which absent models may load now: each that is wanted gets its place, oldest call first."""

from __future__ import annotations

from . import residency
from .records import ALIVE, COMING, Residency, WorkerState
from .state import State

ABLE = ALIVE | COMING | {WorkerState.stopped}
"""States of a worker in which a model may be given its place."""


def consider(s: State, now: float) -> None:
    """Begin the loads that can begin; forget calls that nobody waits for any more."""
    for name in list(s.callers):
        model = s.models[name]
        if model.state is not Residency.absent or not model.wanted:
            del s.callers[name]
        elif s.worker_of(model).state in ABLE and not s.shutdown_level:
            del s.callers[name]
            residency.begin(s, model, now)
