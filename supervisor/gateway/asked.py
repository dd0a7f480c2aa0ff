"""What a dialect makes of a request: generations to run, and how to write what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...protocol.ask import GenerateOptions
from ...protocol.messages import ChunkBody, DoneBody
from .problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One generation; the arguments of the client library's ``generate``."""

    prompt: str | None = None
    options: GenerateOptions


class Writer(Protocol):
    """Writes one streamed answer as server-sent events; pure, and called in order.

    ``index`` counts the generations of the request.
    """

    def begin(self) -> bytes:
        """Before the first chunk of any."""
        ...

    def chunk(self, index: int, chunk: ChunkBody) -> bytes:
        """What a cycle said; empty if that shows nothing."""
        ...

    def end(self, index: int, stats: DoneBody) -> bytes:
        """One generation has succeeded."""
        ...

    def close(self) -> bytes:
        """All have."""
        ...

    def failed(self, problem: Problem) -> bytes:
        """It broke off: the last event."""
        ...


@dataclass(slots=True, kw_only=True)
class Whole:
    """One generation, collected."""

    chunks: list[ChunkBody] = field(default_factory=list[ChunkBody])
    stats: DoneBody | None = None

    @property
    def text(self) -> str:
        """All it said."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def reasoning(self) -> str:
        """All it thought."""
        return "".join(chunk.reasoning for chunk in self.chunks)


class Question(Protocol):
    """A request that was read and found good."""

    @property
    def model(self) -> str: ...
    @property
    def stream(self) -> bool: ...
    @property
    def wanted(self) -> Sequence[Wanted]: ...

    def writer(self) -> Writer:
        """For a streamed answer."""
        ...

    def answer(self, wholes: Sequence[Whole]) -> bytes:
        """The answer in one piece, as JSON."""
        ...


class Dialect(Protocol):
    """One HTTP interface."""

    def read(self, data: bytes) -> Question:
        """Understand a request body. Raises Problem that names what is wrong."""
        ...

    def error(self, problem: Problem) -> bytes:
        """A refusal as JSON."""
        ...
