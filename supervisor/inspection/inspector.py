"""Looks at models' files beside the loop: a disk may be slow, a stream must not be."""

from __future__ import annotations

from collections.abc import Callable

from ..core.effects import InspectModel
from ..core.events import ModelInspected
from ..core.facts import ModelFacts
from ..detached import detached
from .facts import inspect


def look(question: InspectModel, deliver: Callable[[ModelInspected], None]) -> None:
    """Begin to look; ``deliver`` gets the answer in the loop, or never if a disk hangs."""

    def work() -> ModelInspected:
        model, body = question.model, question.body
        return ModelInspected(model=model, body=body, facts=facts_of(question))

    detached(f"inspect {question.model}", work, deliver)


def facts_of(question: InspectModel) -> ModelFacts:
    """What the files tell; that they tell nothing is an answer too."""
    try:
        return inspect(
            question.body, concurrency=question.concurrency, pool_bytes=question.pool_bytes
        )
    except Exception as error:  # noqa: BLE001 (a thread's border: the model may be tried)
        return ModelFacts(unknown=f"its files could not be understood: {error}"[:500])
