"""The models this process holds, by name."""

from __future__ import annotations

from ..protocol.errors import DflashError, ErrorCode
from ..protocol.messages import LoadBody
from .engine import Engine, HeldModel, Progress
from .log import line, log


class Registry:
    """Loads and forgets models; the only owner of references to them besides running requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._models: dict[str, HeldModel] = {}

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

    def load(self, name: str, body: LoadBody, progress: Progress) -> HeldModel:
        """Load and enter a model; whatever is raised, no entry of it was made."""
        if name in self._models:
            raise DflashError(
                ErrorCode.bad_request, f"model {name} is loaded already: unload it first"
            )
        model = self._engine.load(name, body, progress)
        self._models[name] = model
        return model

    def unload(self, name: str) -> bool:
        """Forget a model; whether it was there. Requests must have let go of it before."""
        model = self._models.pop(name, None)
        if model is None:
            return False
        try:
            model.close()
        except Exception:  # noqa: BLE001 - a backend's border: the others go on
            log.exception(line("close_failed", model=name))
        return True

    def clear(self) -> None:
        """Forget all."""
        for name in self.names:
            self.unload(name)
