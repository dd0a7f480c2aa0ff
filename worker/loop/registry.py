"""The models this process holds, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody
from ..engine.border import Engine, HeldModel
from ..errand import Progress
from ..log import line, log


class Registry:
    """Loads and forgets models; the only owner of references to them besides running requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._models: dict[str, HeldModel] = {}
        self._replaced: list[tuple[str, HeldModel]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models held, oldest first."""
        return tuple(self._models)

    def get(self, name: str) -> HeldModel:
        """The model of that name. Raises DflashError(not_found)."""
        model = self._models.get(name)
        if model is None:
            raise DflashError(
                ErrorCode.not_found, f"model {name} is not loaded in this worker", retryable=True
            )
        return model

    def load(
        self,
        name: str,
        body: LoadBody,
        progress: Progress,
        *,
        prepared: object,
        check: Callable[[], None] = lambda: None,
        replace: bool = False,
    ) -> HeldModel:
        """Load and enter a model; whatever is raised, no entry of it was made.

        ``prepared`` is what the engine's ``prepare`` gave. ``check`` raises if nobody wants it any
        more. With ``replace`` a model of this name stays open until :meth:`close_replaced`.
        """
        if name in self._models and not replace:
            raise DflashError(
                ErrorCode.bad_request, f"model {name} is loaded already: unload it first"
            )
        model = self._engine.load(name, body, progress, prepared)
        try:
            check()
        except DflashError:
            _close(model, name)
            raise
        if name in self._models:
            self._replaced.append((name, self._models.pop(name)))
        self._models[name] = model
        return model

    def close_replaced(self, in_use: Iterable[HeldModel]) -> bool:
        """Close the replaced models that are not ``in_use``; whether there were any."""
        if not self._replaced:
            return False
        needed = {id(model) for model in in_use}
        over = [entry for entry in self._replaced if id(entry[1]) not in needed]
        self._replaced = [entry for entry in self._replaced if id(entry[1]) in needed]
        for name, model in over:
            _close(model, name)
        return bool(over)

    def unload(self, name: str) -> bool:
        """Forget a model; whether it was there. Requests must have let go of it before."""
        model = self._models.pop(name, None)
        if model is None:
            return False
        _close(model, name)
        return True

    def clear(self) -> None:
        """Forget all."""
        for name in self.names:
            self.unload(name)
        self.close_replaced(())


def _close(model: HeldModel, name: str) -> None:
    try:
        model.close()
    except Exception:  # noqa: BLE001 - a backend's border: the others go on
        log.exception(line("close_failed", model=name))
