"""What people have wished: who may be beside whom, and who is to stay out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dflashd.supervisor.config.configuration import Config


class Wishes:
    """Kept apart from the core, which may do nothing that nobody wished."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, set[str]] = defaultdict(set)
        self._retires: dict[bytes, str] = {}
        self._out: set[str] = set()

    def configured(self, before: Config | None, after: Config) -> None:
        """A configuration is in effect; a model that is new in it may be preloaded."""
        for name, section in after.models.items():
            if section.group is not None:
                self._groups[name].add(section.group)
            if before is None or name not in before.models:
                self.called(name)

    def grouped(self, model: str, group: str) -> None:
        """An operator wants a model in a group."""
        if group != model:
            self._groups[model].add(group)

    def called(self, model: str) -> None:
        """Somebody wants a model; whoever retired it before would have to do it again."""
        self._out.discard(model)
        self._retires = {id: name for id, name in self._retires.items() if name != model}

    def retiring(self, id: bytes, model: str) -> None:
        """An operator wants a model out."""
        self._retires[id] = model

    def answered(self, id: bytes, end: str) -> None:
        """A command has its answer: with a retire's, the model is out."""
        model = self._retires.pop(id, None)
        if model is not None and end == "done":
            self._out.add(model)

    def may_share(self, models: Iterable[str]) -> bool:
        """Whether one process for all of these was ever wished."""
        together = list(models)
        return len(together) < 2 or bool(set.intersection(*(self._groups[m] for m in together)))

    def may_load(self, model: str) -> bool:
        """Whether a model has been wished for since it was last retired."""
        return model not in self._out
