"""The engine of a worker: models and generations on mlx, behind the loop's border.

Imports mlx: only for processes that prepared the BLAS.
"""

from __future__ import annotations

from typing import final

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody, LoadedBody
from ..cache.registry import CacheRegistry
from ..errand import Errand, Progress
from ..hooks.guard import GUARD, HookGuard
from ..hooks.model_guard import ModelGuard
from ..targets.target import BACKEND
from . import memory
from .backend import Backends
from .border import HeldModel
from .dflash_backend import DflashBackend, MlxModel
from .load_errors import typed_errors
from .shared import SharedParts

__all__ = ["MlxEngine", "MlxModel"]


@final
class MlxEngine:
    """Loads models on mlx, through the backend that each is configured for. All calls but
    ``prepare`` on one thread.
    """

    def __init__(self, guard: HookGuard = GUARD) -> None:
        self.caches = CacheRegistry()
        self.shared = SharedParts()
        self._guard = guard
        self._backends = Backends({BACKEND: DflashBackend(self.caches, self.shared)})

    def prepare(self, name: str, body: LoadBody, errand: Errand) -> object:
        """What the model's backend does beside the engine."""
        with typed_errors(name):
            return self._backends.get(body.backend).prepare(name, body, errand)

    def load(self, name: str, body: LoadBody, progress: Progress, prepared: object) -> HeldModel:
        """Load a model whole, or raise and keep nothing of it."""
        backend = self._backends.get(body.backend)
        guard = ModelGuard(self._guard, body.backend, name)
        with typed_errors(name), guard.undone_on_failure():
            model = backend.load(name, body, progress, guard, prepared)
            if not isinstance(model.facts, LoadedBody):  # pyright: ignore[reportUnnecessaryIsInstance] - other people's code
                raise DflashError(
                    ErrorCode.load_failed, f"backend {body.backend} tells no facts of model {name}"
                )
        return model

    def held_bytes(self) -> int:
        """Memory this process holds now."""
        return memory.held_bytes()

    def reclaim(self) -> None:
        """Give memory that nothing refers to any more back to the system."""
        memory.reclaim()

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` is an allocation that failed."""
        return memory.ran_out(error)
