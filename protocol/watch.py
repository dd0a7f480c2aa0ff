"""Watching the daemon: events and logs as they come, for the user of :class:`AsyncClient`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar, final

from .codec import Message
from .credit import ReceiveWindow
from .errors import DflashError, ErrorCode
from .messages import (
    AddCredit,
    Cancel,
    Done,
    Happened,
    Header,
    LogPart,
)
from .pending import Pending

T = TypeVar("T")


@final
class Watch(Pending):
    """The client's side of one feed: what has not been read yet, at most a window of it."""

    def __init__(self, id: bytes, tell: Callable[[Header], None]) -> None:
        super().__init__(id)
        self.window = ReceiveWindow()
        self._tell = tell
        self._unread: deque[Message] = deque()

    async def next(self) -> Message | None:
        """Return the next message, None after the last. Raises what the watch failed with."""
        while not self._unread:
            self._raise_if_failed()
            if self.ended:
                return None
            await self._change()
        message = self._unread.popleft()
        granted = self.window.consumed()
        if granted and not self.ended:
            self._tell(AddCredit(id=self.id, chunks=granted))
        return message

    def abandon(self, reason: str) -> None:
        """Cancel in the daemon and end here at once; a no-op after the end."""
        if not self.ended:
            self._tell(Cancel(id=self.id))
            self._unread.clear()
            self.fail(DflashError(ErrorCode.cancelled, reason))

    def _take(self, message: Message) -> None:
        match message.header:
            case Happened() | LogPart():
                if not self.window.arrived():
                    sentence = "the daemon sent a message without credit for it"
                    raise DflashError(ErrorCode.protocol, sentence)
                self._unread.append(message)
                self._changed.set()
            case Done():
                self._end()
            case _:
                raise self._unexpected(message)


@final
class Watching(Generic[T]):
    """Iterate over what the daemon tells. It is ended in the daemon when it is abandoned:

    the waiting task cancelled, a ``with`` block left, or the object dropped.
    """

    def __init__(
        self, start: Callable[[], Awaitable[Watch]], read: Callable[[Message], T | None]
    ) -> None:
        self._start = start
        self._read = read
        self._watch: Watch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        item = await self.next()
        if item is None:
            raise StopAsyncIteration
        return item

    async def next(self) -> T | None:
        """Return the next one, None after the last. Raises DflashError."""
        if self._watch is None:
            self._loop = asyncio.get_running_loop()
            self._watch = await self._start()
        try:
            while (message := await self._watch.next()) is not None:
                item = self._read(message)
                if item is not None:
                    return item
        except asyncio.CancelledError:
            self._watch.abandon("the task that watched was cancelled")
            raise
        return None

    def abandon(self) -> None:
        """End it in the daemon without waiting; callable from any thread."""
        watch, loop = self._watch, self._loop
        if watch is not None and loop is not None and not watch.ended:
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is the connection
                loop.call_soon_threadsafe(watch.abandon, "nobody watches any more")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.abandon("its context was left")

    def __del__(self) -> None:
        self.abandon()
