"""Which slot a model is in: its group's or its own, and what is done about a conflict in it."""

from __future__ import annotations

from . import vacancy
from .home import Home, alone, configured
from .life import OUTSIDE, SERVED, WITHOUT_PROCESS, Residency
from .records import Model, Worker
from .state import State


def move(s: State, model: Model, home: Home) -> None:
    """Put a model that is in no process into the slot of another home."""
    old = s.worker_of(model)
    if old.home == home:
        return
    old.models = tuple(name for name in old.models if name != model.name)
    s.touch(old)
    new = s.slot(home)
    new.models = (*new.models, model.name)
    model.worker = new.name
    s.place(model, model.state, model.deadline)


def remove_if_empty(s: State, worker: Worker) -> bool:
    """Forget a slot that no model is in any more, once its process is gone."""
    if worker.models or worker.state not in WITHOUT_PROCESS:
        return False
    del s.workers[worker.name]
    return True


def conflicted(s: State, model: Model, text: str) -> bool:
    """A model cannot share its group's worker: move it out, unless that is not wanted or no help.

    ``model`` is loading or absent; True: it waits for its own worker now.
    """
    slot = s.worker_of(model)
    if model.settings.placement == "strict" or len(slot.models) == 1:
        return False
    if model.state not in OUTSIDE:
        vacancy.vacate(s, model)
    model.apart = f"not in the worker of group {slot.home.name}: {text}"
    move(s, model, alone(model.name))
    s.note("placement_changed", model=model.name, left=slot.name, worker=model.worker, reason=text)
    return True


def predicted(s: State, model: Model) -> str:
    """The conflict that loading a model into its slot will meet, as far as files tell; or empty.

    Engines of one family of models hook the same classes: two different ones cannot both.
    """
    family = model.facts.model_type if model.facts else ""
    backend = model.settings.backend
    for other in s.models_of(s.worker_of(model)):
        here = other is not model and other.state in SERVED | {Residency.loading}
        theirs = other.facts.model_type if here and other.facts else ""
        if family and theirs == family and other.settings.backend != backend:
            return (
                f"{other.name} has {family} hooked by backend {other.settings.backend}, "
                f"{model.name} wants it hooked by {backend}"
            )
    return ""


def is_elsewhere(s: State, model: Model, home: Home) -> bool:
    """Whether a model would have to be unloaded before it can be put into ``home``."""
    return s.worker_of(model).home != home and model.state not in OUTSIDE


def choose(s: State, model: Model, home: Home) -> None:
    """An operator puts a model into a group, or into a worker of its own."""
    where = f"group {home.name}" if home.kind == "group" else "a worker of its own"
    at_home = home == configured(model.name, model.settings)
    model.apart = "" if at_home else f"put into {where} by an operator"
    left = s.worker_of(model)
    if left.home != home:
        move(s, model, home)
        reason = model.apart or "put back by an operator"
        s.note(
            "placement_changed",
            model=model.name,
            left=left.name,
            worker=model.worker,
            reason=reason,
        )
