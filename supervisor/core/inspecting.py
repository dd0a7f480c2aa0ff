"""What files tell of a model before it is loaded; asked anew for each load, as files change."""

from __future__ import annotations

from .effects import InspectModel
from .events import ModelInspected
from .facts import ModelFacts
from .life import Residency
from .records import Model
from .state import State


def ask(s: State, model: Model, now: float) -> None:
    """Have a model's files looked at, if that is not under way."""
    if not is_asked(model):
        model.deadline = now + s.limits.inspect_timeout_s
        s.emit(
            InspectModel(
                model=model.name,
                body=model.settings.load_body,
                concurrency=s.limits.active_requests_per_worker,
                pool_bytes=s.pool_bytes,
            )
        )


def inspected(s: State, event: ModelInspected) -> None:
    """The answer is there; one that nobody waits for, or of other settings, is forgotten."""
    model = s.models.get(event.model)
    if model is not None and is_asked(model) and event.body == model.settings.load_body:
        learn(s, model, event.facts)


def forget(model: Model) -> None:
    """Nobody wants the load that an absent model was looked at for, or not with these settings."""
    if model.state is Residency.absent:
        model.deadline = None
        model.facts = None


def is_asked(model: Model) -> bool:
    """Whether an answer is waited for: an absent model has no other deadline."""
    return model.state is Residency.absent and model.deadline is not None


def timed_out(s: State, model: Model) -> None:
    """A disk that does not answer keeps no model from being tried."""
    learn(s, model, ModelFacts(unknown="its files could not be read in time"))


def learn(s: State, model: Model, facts: ModelFacts) -> None:
    """Keep what is known for this load."""
    model.deadline = None
    model.facts = facts
    if facts.unknown:
        s.note("model_sizes_unknown", model=model.name, reason=facts.unknown)
    s.call(model)
