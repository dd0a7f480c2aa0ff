"""The engine of a worker: models and generations on mlx, behind the loop's border.

Imports mlx: only for processes that prepared the BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..protocol.messages import GenerateBody, LoadBody, LoadedBody
from . import memory
from .engine import Progress
from .generation import Generation
from .model import Model, load_model


@dataclass(frozen=True, slots=True)
class MlxModel:
    """A loaded model, as the loop sees it."""

    model: Model

    @property
    def facts(self) -> LoadedBody:
        """What the load found."""
        return LoadedBody(
            digest=self.model.digest,
            engine=self.model.engine,
            block_tokens=self.model.block_tokens,
            context_tokens=self.model.context_tokens,
            memory_bytes=self.model.memory_bytes,
            device=self.model.device,
            dtype=self.model.dtype,
        )

    def begin(self, body: GenerateBody) -> Generation:
        """Start a request. Raises DflashError(bad_request | unsupported)."""
        return Generation(self.model, body)


@final
class MlxEngine:
    """Loads models on mlx. All calls on one thread."""

    def load(self, name: str, body: LoadBody, progress: Progress) -> MlxModel:
        """Load a model whole, or raise and keep nothing of it."""
        return MlxModel(load_model(name, body, progress))

    def held_bytes(self) -> int:
        """Memory this process holds now."""
        return memory.held_bytes()

    def reclaim(self) -> None:
        """Give memory that nothing refers to any more back to the system."""
        memory.reclaim()

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` is an allocation that failed."""
        return memory.ran_out(error)
