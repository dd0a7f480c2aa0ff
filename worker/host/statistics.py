"""A host at one moment: what is loaded, what runs on it, who holds which hooks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.messages import LoadBody, LoadedBody
from .desk import HeldRecord

if TYPE_CHECKING:
    from ..hooks.guard import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """One loaded model of a host. Requests are counted since it was loaded as it is."""

    name: str
    settings: LoadBody
    loaded: LoadedBody
    active: int
    completed: int
    failed: int
    generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatistics:
    """A host at one moment. ``memory_bytes`` is the whole process's, ``hooks`` all its claims."""

    memory_bytes: int
    steps: int
    models: tuple[ModelStatistics, ...]
    loading: tuple[str, ...]
    hooks: tuple[Ownership, ...]


def model_statistics(name: str, record: HeldRecord, active: int) -> ModelStatistics:
    """One row; ``active`` requests run on it."""
    return ModelStatistics(
        name=name,
        settings=record.body,
        loaded=record.facts,
        active=active,
        completed=record.completed,
        failed=record.failed,
        generated_tokens=record.generated_tokens,
    )


def hooks() -> tuple[Ownership, ...]:
    """What engines of this process have hooked."""
    if "mlx.core" not in sys.modules:  # which the guard imports: there is nothing to hook yet
        return ()
    from ..hooks.guard import GUARD

    return GUARD.owners()
