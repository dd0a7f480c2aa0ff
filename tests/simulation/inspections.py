"""Looks at models' files: answered late, at times with nothing."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dflashd.supervisor.core.effects import InspectModel
from dflashd.supervisor.core.events import ModelInspected
from dflashd.supervisor.core.facts import ModelFacts, Weights

from .setting import size_bytes

if TYPE_CHECKING:
    from .world import World


class Inspections:
    """All looks that were asked for and are not answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._begun: deque[InspectModel] = deque()

    def begin(self, effect: InspectModel) -> None:
        """A model's files are to be looked at."""
        self._begun.append(effect)

    def finish_inspection(self) -> None:
        """Answer one; a disk may also hang."""
        if not self._begun or self._chance.random() < 0.02:
            return
        asked = self._begun.popleft()
        model = asked.model
        weights = Weights(key=model, size_bytes=size_bytes(model))
        facts = ModelFacts(model_type="llama", weights=(weights,))
        if self._chance.random() < 0.1:
            facts = ModelFacts(unknown="not on this disk")
        self._world.give(ModelInspected(model=model, body=asked.body, facts=facts))
