"""An asyncio loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, final

from .errors import DflashError, ErrorCode

T = TypeVar("T")

END_TIMEOUT_S = 5.0


@final
class BackgroundLoop:
    """Runs coroutines for any thread, until :meth:`end`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._ended = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result; interrupted (Ctrl-C), cancel it and raise.

        Raises DflashError(cancelled) when the loop ends meanwhile.
        """
        future = self._submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise self._closed() from error
        except BaseException:
            _ = future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    def end(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last`` and end the loop and its thread. From that thread: without waiting."""

        async def finish() -> None:
            try:
                await last
            finally:
                self._loop.stop()

        _ = asyncio.run_coroutine_threadsafe(finish(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_TIMEOUT_S)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the client must not wait for the client")
        with self._lock:
            if self._ended:
                work.close()
                raise self._closed()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(future)
            return future

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            with self._lock:
                self._ended = True
        # What was submitted too late to run would otherwise be waited for, for ever.
        for future in self._waiting.copy():
            _ = future.cancel()

    @staticmethod
    def _closed() -> DflashError:
        return DflashError(ErrorCode.cancelled, "the client was closed")
