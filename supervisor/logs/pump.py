"""The daemon's own log on its way to stderr: whoever does not read it stops nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import threading
import time
from logging.handlers import QueueHandler
from typing import final

QUEUE_LINES = 4096
DRAIN_S = 1.0
"""How long the last lines may take to leave when the daemon ends."""

Lines = queue.Queue[tuple[int, logging.LogRecord | None]]
"""Each line with how many before it were dropped; None is the end."""


@final
class LogPump(QueueHandler):
    """A handler that never waits: a thread writes, and what does not fit is dropped and counted.

    It writes to the descriptor itself: the lock of ``sys.stderr``, held by a thread that waits for
    a reader, would stop everybody else and the interpreter's end.
    """

    def __init__(self, descriptor: int, lines: int = QUEUE_LINES) -> None:
        self._lines: Lines = queue.Queue(lines)
        super().__init__(self._lines)
        self.dropped = 0
        self._gap = 0
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Add a line, or drop it."""
        try:
            self._lines.put_nowait((self._gap, record))
            self._gap = 0
        except queue.Full:
            self.dropped += 1
            self._gap += 1

    def close(self) -> None:
        """Let what waits be written, for a bounded time; logging calls this at the end."""
        end_s = time.monotonic() + DRAIN_S
        with contextlib.suppress(queue.Full):
            self._lines.put((self._gap, None), timeout=DRAIN_S)
            self._thread.join(max(0.0, end_s - time.monotonic()))
        super().close()

    def _run(self) -> None:
        record = True
        while record:
            gap, record = self._lines.get()
            if gap:
                self._write(f"log_lines_dropped lines={gap}\n")
            if record:
                self._write(record.getMessage() + "\n")

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode("utf-8", "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # our parent made it non-blocking
                _ = self._writable.poll(1000)
            except OSError:
                self.dropped += 1
                return
