"""The thread that writes snapshots to disk: bounded, coalescing, and never in anybody's way."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import final

from .snapshot_file import Payload

QUEUE_LIMIT = 8
RETRY_S = 30.0
"""After the disk refused a write: how long until the next one is tried."""


@final
class Writer:
    """Calls ``store(payload)`` on a thread of its own, one at a time, in order of arrival.

    What is not written is counted in ``dropped`` with its reason: ``queue_full``, ``superseded``,
    ``disk_refused``, ``too_large``, ``error`` or ``unflushed``.
    """

    def __init__(
        self,
        name: str,
        store: Callable[[Payload], str | None],
        *,
        queue_limit: int = QUEUE_LIMIT,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._store = store
        self._queue_limit = queue_limit
        self._retry_s = retry_s
        self._clock = clock
        self._waiting: dict[str, Payload] = {}
        self._busy = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._refused_until_s = 0.0
        self.written = 0
        self.written_bytes = 0
        self.dropped: Counter[str] = Counter()
        self.refusal = ""
        """Why the disk takes nothing at present; empty when it does."""

    @property
    def queued(self) -> int:
        """Payloads that are not written yet."""
        with self._changed:
            return len(self._waiting) + self._busy

    @property
    def waiting(self) -> frozenset[str]:
        """Keys of what waits."""
        with self._changed:
            return frozenset(self._waiting)

    def submit(self, data: Payload) -> bool:
        """Queue a payload; those it replaces need not be written. False: it was dropped."""
        with self._changed:
            for key in data.replaces & self._waiting.keys():
                del self._waiting[key]
                self.dropped["superseded"] += 1
            full = data.key not in self._waiting and len(self._waiting) >= self._queue_limit
            if full or self._closing:
                self.dropped["queue_full" if full else "unflushed"] += 1
                return False
            self._waiting[data.key] = data
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system gives no more threads at present
                    del self._waiting[data.key]
                    self.dropped["error"] += 1
                    return False
                self._thread = thread
            self._changed.notify_all()
        return True

    def forget(self) -> None:
        """Write nothing of what waits."""
        with self._changed:
            self.dropped["superseded"] += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._busy), timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, within the limit, and end. False: a write is still under way."""
        until_s = self._clock() + timeout_s
        with self._changed:
            self._closing = True
        self.flush(timeout_s)
        with self._changed:
            self.dropped["unflushed"] += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(max(0.05, until_s - self._clock()))
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closing)
                if not self._waiting:
                    return
                data = self._waiting.pop(next(iter(self._waiting)))
                self._busy = True
            try:
                self._write(data)
            finally:
                del data
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _write(self, data: Payload) -> None:
        if self._clock() < self._refused_until_s:
            self.dropped["disk_refused"] += 1
            return
        try:
            reason = self._store(data)
        except OSError as error:
            self.refusal = f"writing is off: {error.strerror or error}"
            self._refused_until_s = self._clock() + self._retry_s
            self.dropped["disk_refused"] += 1
            return
        except Exception as error:  # noqa: BLE001 - this thread's border
            self.refusal = f"a write failed: {error!r}"
            self.dropped["error"] += 1
            return
        self.refusal = ""
        if reason is not None:
            self.dropped[reason] += 1
            return
        self.written += 1
        self.written_bytes += data.nbytes
