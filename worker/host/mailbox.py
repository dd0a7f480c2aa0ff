"""What the engine's thread says to one waiting thread, in order, with a last word."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast, final

from ...protocol.errors import DflashError, ErrorCode
from ..latch import Latch

T = TypeVar("T")


@final
class Mailbox(Generic[T]):
    """``put`` and ``close`` never block. What ``close`` was given is there for every reader."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._closed = Latch()
        self._last: object = None

    @property
    def closed(self) -> bool:
        """Whether the last word has been said; others may still be unread."""
        return self._closed.closed

    def put(self, item: T) -> None:
        """Say something."""
        self._items.put(item)

    def close(self, last: T) -> None:
        """Say the last word."""
        self._last = last
        self._items.put(last)
        self._closed.close()

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait for the last word without reading; whether it came."""
        return self._closed.wait(timeout_s)

    def take(self, steps: Callable[[], int], silence_s: float, until_s: float) -> T:
        """The next word. It is waited for until the moment ``until_s`` (may be infinite), and as
        long as ``steps`` counts on within ``silence_s``.

        Raises:
            DflashError: deadline or internal; the waiting is over, what was asked goes on.
        """
        while True:
            before = steps()
            if self.closed and self._items.empty():  # an interrupted frame holds the last word
                return cast("T", self._last)
            left_s = until_s - time.monotonic()
            try:
                item = self._items.get(timeout=max(0.0, min(silence_s, left_s)))
            except queue.Empty:
                if time.monotonic() >= until_s:
                    raise DflashError(ErrorCode.deadline, "the deadline passed") from None
                if steps() == before:
                    raise DflashError(
                        ErrorCode.internal, f"the engine has not moved for {silence_s:g} seconds"
                    ) from None
                continue
            if item is self._last:
                self._items.put(item)  # for readers still to come
            return item
