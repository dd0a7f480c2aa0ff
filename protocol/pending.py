"""What waits for an answer of the daemon: one request from its first byte to its one end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar, final

from .arguments import checked_call
from .codec import Message
from .errors import DflashError, ErrorCode
from .messages import Accepted, Event, Failed
from .question import OnEvent, Question

T = TypeVar("T")


class Pending(ABC):
    """One request of ours. It ends once: by an answer, or by :meth:`fail`."""

    def __init__(self, id: bytes, on_event: OnEvent | None = None) -> None:
        if on_event is not None:
            checked_call("on_event", on_event)
        self.id: bytes = id
        self.ended: bool = False
        self._answer_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._on_event: OnEvent | None = on_event
        self._on_end: Callable[[Pending], None] | None = None
        self._changed: asyncio.Event = asyncio.Event()

    def when_ended(self, call: Callable[[Pending], None]) -> None:
        """Have ``call`` called once, at the end."""
        self._on_end = call

    def expect_answer(self, timer: asyncio.TimerHandle) -> None:
        """Hold the timer that the first answer stops."""
        self._answer_timer = timer

    def expect_end(self, timer: asyncio.TimerHandle) -> None:
        """Hold the timer that the end stops."""
        self._end_timer = timer

    def receive(self, message: Message) -> None:
        """Take a message with our id. Raises DflashError when it breaks the protocol."""
        self._stop_answer_timer()
        match message.header:
            case Accepted() | Event() as event:
                if self._on_event is not None:
                    self._on_event(event)
            case Failed() as failed:
                self.fail(failed.error())
            case _:
                self._take(message)

    def fail(self, error: Exception) -> None:
        """End without success; a no-op after the end."""
        if not self.ended:
            self._error = error
            self._end()

    async def end(self) -> None:
        """Wait for the end, whichever it is."""
        while not self.ended:
            await self._change()

    @abstractmethod
    def _take(self, message: Message) -> None:
        """Take the messages that only this sort of request gets."""

    def _end(self) -> None:
        self.ended = True
        self._on_event = None
        self._stop_answer_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
        if self._on_end is not None:
            self._on_end(self)
        self._changed.set()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _unexpected(self, message: Message) -> DflashError:
        kind = message.header.__struct_config__.tag
        return DflashError(ErrorCode.protocol, f"the daemon sent '{kind}' where it has no meaning")


@final
class Call(Pending, Generic[T]):
    """A question that is being answered."""

    def __init__(self, question: Question[T], on_event: OnEvent | None = None) -> None:
        super().__init__(question.id, on_event)
        self._question = question
        self._result: Message | None = None

    async def result(self) -> T:
        """Wait for the answer. Raises what the request failed with."""
        while self._result is None:
            self._raise_if_failed()
            await self._change()
        return self._question.read(self._result)

    def _take(self, message: Message) -> None:
        if not isinstance(message.header, self._question.answer):
            raise self._unexpected(message)
        self._result = message
        self._end()
