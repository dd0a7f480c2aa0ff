"""Credit-based flow control of one stream, as two pure counters.

The sender may have ``window`` chunks in flight; the reader gives credit back for what it has
consumed, half a window at a time, so a slow reader slows only its own stream.
"""

from __future__ import annotations

from .messages import WINDOW_CHUNKS


class SendWindow:
    """The sender's side: how many chunks it may still send."""

    __slots__ = ("_chunks", "_limit")

    def __init__(self, chunks: int, limit: int = WINDOW_CHUNKS) -> None:
        self._limit = limit
        self._chunks = min(chunks, limit)

    @property
    def open(self) -> bool:
        """Whether one more chunk may be sent."""
        return self._chunks > 0

    @property
    def chunks(self) -> int:
        """How many chunks may still be sent."""
        return self._chunks

    def take(self) -> bool:
        """Use one chunk of credit; False, and nothing taken, when there is none."""
        if self._chunks == 0:
            return False
        self._chunks -= 1
        return True

    def add(self, chunks: int) -> None:
        """Add credit; more than the window is cut, so that no peer can unbound the sender."""
        self._chunks = min(self._chunks + chunks, self._limit)


class ReceiveWindow:
    """The reader's side: what may still arrive, and when to give credit back."""

    __slots__ = ("_consumed", "_in_flight", "_window")

    def __init__(self, window: int = WINDOW_CHUNKS) -> None:
        self._window = window
        self._in_flight = window
        self._consumed = 0

    @property
    def window(self) -> int:
        """The credit to ask with at first, in chunks."""
        return self._window

    def arrived(self) -> bool:
        """Count one chunk that arrived; False when the sender had no credit for it."""
        if self._in_flight == 0:
            return False
        self._in_flight -= 1
        return True

    def consumed(self) -> int:
        """Count one chunk the reader took; return the chunks to grant now, often 0."""
        self._consumed += 1
        if self._consumed < (self._window + 1) // 2:
            return 0
        granted = self._consumed
        self._consumed = 0
        self._in_flight += granted
        return granted
