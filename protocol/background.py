"""An asyncio loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, final

T = TypeVar("T")

STOP_TIMEOUT_S = 5.0


@final
class BackgroundLoop:
    """Runs coroutines for any thread; :meth:`stop` ends the loop and joins its thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result; interrupted (Ctrl-C), cancel it and raise."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the client must not wait for the client")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            _ = future.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop and wait for its thread. Idempotent."""
        if not self._loop.is_closed():
            _ = self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
