"""What the engine thread has for the I/O thread to send: a queue that wakes a poll."""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import suppress

Frames = list[bytes]

_ADVISORY_LIMIT = 64
"""Messages waiting above which one that may be lost is not added."""


class Outbox:
    """Encoded messages in order. ``put`` and ``offer`` from any thread, the rest from one.

    Chunks are bounded by their requests' credit and every other answer by its question; only
    progress is not, hence ``offer``.
    """

    def __init__(self) -> None:
        self._waiting: deque[Frames] = deque()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def __len__(self) -> int:
        return len(self._waiting)

    def fileno(self) -> int:
        """Readable after ``put``, ``offer`` or ``wake``."""
        return self._read_fd

    def put(self, frames: Frames) -> None:
        """Add a message and wake the reader."""
        self._waiting.append(frames)
        self.wake()

    def offer(self, frames: Frames) -> bool:
        """Add a message that may be lost; False, and nothing done, if many wait already."""
        if len(self._waiting) >= _ADVISORY_LIMIT:
            return False
        self.put(frames)
        return True

    def wake(self) -> None:
        """Make the reader look; safe in a signal handler."""
        # A full pipe holds wake-ups that the reader has not taken yet.
        with suppress(BlockingIOError):
            os.write(self._write_fd, b"\0")

    def wake_on_signals(self) -> None:
        """Let every signal wake the reader too, also one that comes just before it blocks."""
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def quiet(self) -> None:
        """Take the wake-ups; call before looking, so that none is lost."""
        with suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                pass

    def first(self) -> Frames | None:
        """The oldest message, left in place until it is sent."""
        return self._waiting[0] if self._waiting else None

    def sent(self) -> None:
        """The oldest message has gone."""
        self._waiting.popleft()
