"""What the loop needs of an engine: the border behind which all mlx work happens.

Every method but ``prepare`` is called on the one thread that drives the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ...protocol.messages import CacheBody, ChunkBody, GenerateBody, LoadBody, LoadedBody
from ..errand import Errand, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What an engine knows about a generation; the names are those of DoneBody."""

    finish_reason: Literal["stop", "length"]
    engine: Literal["dflash", "plain"]
    engine_reason: str = ""
    stop_string: str | None = None
    block_tokens: int = 0
    cycles: int = 0
    acceptance_length_tokens: float = 0.0
    prompt_tokens: int
    cached_tokens: int = 0
    cache_hit: str = "miss"
    cache_miss_reason: str = ""
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Generation(Protocol):
    """One request being generated."""

    @property
    def finished(self) -> bool:
        """True after the step that ended it."""
        ...

    def step(self) -> ChunkBody | None:
        """Run one prefill chunk (None) or one decode cycle."""
        ...

    def statistics(self) -> Statistics:
        """Facts so far; final once finished."""
        ...

    def close(self) -> None:
        """Free what it holds; idempotent."""
        ...


class HeldModel(Protocol):
    """A loaded model."""

    @property
    def facts(self) -> LoadedBody:
        """What the load found."""
        ...

    def begin(self, body: GenerateBody) -> Generation:
        """Start a request. Raises DflashError(bad_request | unsupported)."""
        ...

    def cache_state(self) -> CacheBody:
        """What its prefix cache holds and has done."""
        ...

    def clear_cache(self) -> None:
        """Forget all cached prefixes."""
        ...

    def close(self) -> None:
        """It is being unloaded: retire its cache. Requests may still hold it."""
        ...


class Engine(Protocol):
    """Loads models and answers for the memory they take."""

    def prepare(self, name: str, body: LoadBody, errand: Errand) -> object:
        """What of a load needs neither the engine's thread nor memory: fetching, reading files.

        Called on a thread of its own, beside everything else; may take hours, and is called off
        through ``errand``. The result is for :meth:`load`.
        """
        ...

    def load(self, name: str, body: LoadBody, progress: Progress, prepared: object) -> HeldModel:
        """Load a model whole, or raise and keep nothing of it. ``prepared`` is what
        :meth:`prepare` gave.
        """
        ...

    def held_bytes(self) -> int:
        """Memory this process holds now."""
        ...

    def reclaim(self) -> None:
        """Give memory that nothing refers to any more back to the system."""
        ...

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` is an allocation that failed."""
        ...
