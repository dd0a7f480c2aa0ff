"""An asyncio loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, final

from . import absence

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

END_TIMEOUT_S = 5.0


@final
class BackgroundLoop:
    """Runs coroutines for any thread, until :meth:`end`.

    They are made on the loop's own thread, where Ctrl-C is never raised: a coroutine of the
    caller's could be lost between its making and its first step.
    """

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._ended = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Work[T]) -> T:
        """Run ``work()`` and return its result; interrupted (Ctrl-C), cancel it and raise.

        Raises DflashError(cancelled) when the loop ends meanwhile.
        """
        if os.getpid() != self._pid:  # the loop's thread is not here: this would wait for ever
            raise RuntimeError("this client is of the process before the fork: make one here")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the client must not wait for the client")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self._submit(work, future)
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise absence.closed() from error
        except BaseException:
            _ = future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    def end(self, last: Work[None]) -> None:
        """Run ``last()`` and end the loop and its thread. From that thread: without waiting."""
        if os.getpid() != self._pid:
            return  # a fork has neither
        with self._lock:
            self._ended = True  # for others: what they submit would find it half closed

        async def finish() -> None:
            try:
                await last()
            finally:
                self._loop.stop()

        self._schedule(finish, concurrent.futures.Future())
        if threading.current_thread() is not self._thread:
            self._thread.join(END_TIMEOUT_S)

    def _submit(self, work: Work[T], future: concurrent.futures.Future[T]) -> None:
        with self._lock:
            if self._ended:
                raise absence.closed()
            self._waiting.add(future)
            self._schedule(work, future)

    def _schedule(self, work: Work[T], future: concurrent.futures.Future[T]) -> None:
        """Start ``work`` on the loop; its end is the future's, whose cancellation cancels it."""

        def start() -> None:
            if future.cancelled():
                return
            task = self._loop.create_task(work())
            self._tasks.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda ended: _hand_over(ended, future))
            future.add_done_callback(lambda ended: self._cancel(task, ended))

        _ = self._loop.call_soon_threadsafe(start)

    def _cancel(self, task: asyncio.Task[T], ended: concurrent.futures.Future[T]) -> None:
        if ended.cancelled():
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is the connection
                _ = self._loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            with self._lock:
                self._ended = True
        # What was submitted too late to run would otherwise be waited for, for ever.
        for future in self._waiting.copy():
            _ = future.cancel()


def _hand_over(task: asyncio.Task[T], future: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        _ = future.cancel()
    elif future.set_running_or_notify_cancel():
        error = task.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())
    else:
        _ = task.exception()  # nobody waits for it any more
