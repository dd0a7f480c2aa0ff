"""What the loop needs of an engine: the border behind which all mlx work happens.

Every method but ``prepare`` is called on the one thread that drives the loop.
"""

from __future__ import annotations

from typing import Literal, Protocol

from ...protocol.messages import CacheBody, ChunkBody, GenerateBody, LoadBody, LoadedBody
from ..errand import Errand, Progress


class Statistics(Protocol):
    """What an engine knows about a generation; the names are those of DoneBody."""

    @property
    def finish_reason(self) -> Literal["stop", "length"]: ...
    @property
    def engine(self) -> Literal["dflash", "plain"]: ...
    @property
    def engine_reason(self) -> str: ...
    @property
    def stop_string(self) -> str | None: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def cycles(self) -> int: ...
    @property
    def acceptance_length_tokens(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def cache_hit(self) -> str: ...
    @property
    def cache_miss_reason(self) -> str: ...
    @property
    def generated_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def prefill_ms(self) -> float: ...
    @property
    def decode_ms(self) -> float: ...


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
