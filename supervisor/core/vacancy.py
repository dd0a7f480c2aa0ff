"""What becomes of a model's row when it leaves its process."""

from __future__ import annotations

from .life import OUTSIDE, SERVED, Residency
from .records import Model, Worker
from .state import State


def vacate(s: State, model: Model) -> None:
    """Clear a model's row of what belonged to its stay in a process; failures keep their state."""
    if model.loaded is not None:
        model.unloads += 1
        hand_over(s, model)
    model.loaded = None
    model.shared_bytes = 0
    model.ordered = False
    model.leaving = None
    model.facts = None
    model.guess_bytes = None
    model.going = ""
    clear_stage(model)
    if model.state not in OUTSIDE:
        s.place(model, Residency.absent)


def hand_over(s: State, model: Model) -> None:
    """Whose weights others share goes: the oldest of those holds them now for itself."""
    if model.loaded is None:
        return
    heirs = [
        other
        for other in s.models_of(s.worker_of(model))
        if other.state in SERVED
        and other.loaded is not None
        and other.loaded.target_digest == model.loaded.target_digest
        and other.shared_bytes > model.shared_bytes
    ]
    if heirs:
        min(heirs, key=lambda other: other.ready_at).shared_bytes = model.shared_bytes


def clear_stage(model: Model) -> None:
    """A load is over, one way or another."""
    model.stage = ""
    model.stage_done = model.stage_total = 0


def go_along(s: State, worker: Worker) -> None:
    """Nothing of a worker's models can be used any more; they are gone with its process."""
    for model in s.models_of(worker):
        if model.state not in OUTSIDE:
            s.place(model, Residency.unloading)
