"""A running generation, as the user of :class:`AsyncClient` holds it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self, final

from msgspec import Struct

from .errors import DflashError, ErrorCode
from .messages import ChunkBody, DoneBody
from .stream import Stream


class Completion(Struct, frozen=True, kw_only=True):
    """A whole answer: its text, its tokens, and what the daemon says about it."""

    text: str
    tokens: tuple[int, ...]
    stats: DoneBody


@final
class Generation:
    """Iterate over its chunks, or wait for the whole.

    It is cancelled in the worker when it is abandoned: iteration left early, a ``with`` block
    left, the waiting task cancelled, or the object dropped.
    """

    def __init__(self, stream: Stream, timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._timeout_s = timeout_s
        self._loop = loop

    @property
    def id(self) -> bytes:
        """The request's 128-bit id."""
        return self._stream.id

    @property
    def stats(self) -> DoneBody | None:
        """What the daemon says about it, once it has succeeded."""
        return self._stream.stats

    @property
    def ended(self) -> bool:
        """Whether its end has arrived; chunks may still be unread."""
        return self._stream.ended

    def __aiter__(self) -> Chunks:
        """Iterate over :class:`ChunkBody`; errors raise DflashError."""
        return Chunks(self)

    async def next(self) -> ChunkBody | None:
        """Return the next chunk, None after the last."""
        try:
            return await self._stream.next()
        except asyncio.CancelledError:
            self._stream.abandon("the task that read this generation was cancelled")
            raise

    async def wait(self) -> Completion:
        """Read to the end and return the whole, what was iterated over before included."""
        while await self.next() is not None:
            pass
        stats = self._stream.stats
        if stats is None:
            raise DflashError(ErrorCode.internal, "a generation ended without statistics")
        return Completion(
            text="".join(self._stream.text), tokens=tuple(self._stream.tokens), stats=stats
        )

    async def cancel(self) -> None:
        """Stop it in the worker and wait, for a bounded time, until that is confirmed."""
        self._stream.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._stream.end()
        self._stream.abandon("the daemon did not confirm the cancellation")

    def abandon(self) -> None:
        """Stop it in the worker without waiting; callable from any thread."""
        if not self._stream.ended:
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is the connection
                self._loop.call_soon_threadsafe(self._stream.abandon, "the generation was dropped")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.abandon("its context was left")

    def __del__(self) -> None:
        self.abandon()


@final
class Chunks:
    """One iteration over a generation; leaving it early cancels the generation."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChunkBody:
        chunk = await self._generation.next()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def __del__(self) -> None:
        # The loop holds the only reference: this runs as soon as it is left.
        self._generation.abandon()
