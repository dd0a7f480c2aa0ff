"""Something that happens once, and can be waited for."""

from __future__ import annotations

import queue
from typing import final


@final
class Latch:
    """Closed once, for ever. Unlike a ``threading.Event`` it may be closed by a signal handler that
    interrupted this very thread inside it: a queue in C has no lock of Python's.
    """

    def __init__(self) -> None:
        self._closed = False
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def closed(self) -> bool:
        """Whether it has happened."""
        return self._closed

    def close(self) -> None:
        """It has happened."""
        self._closed = True
        self._tokens.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait for it; whether it has happened."""
        if self._closed:  # the token may be on its way through the hands of an interrupted frame
            return True
        try:
            self._tokens.get(timeout=timeout_s)
        except queue.Empty:
            return self._closed
        self._tokens.put(None)  # for others who wait
        return True
