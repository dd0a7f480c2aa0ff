"""Noticing the end of a child at once, without polling and without reaping it."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable
from typing import final


@final
class ExitWatch:
    """Calls ``on_exit`` once in the loop when child ``pid`` has ended; it is not reaped yet."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, on_exit: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._fd = exit_descriptor(pid)
        loop.add_reader(self._fd, self._ended)

    def close(self) -> None:
        """Watch no longer. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ended(self) -> None:
        if self._fd >= 0:
            self.close()
            self._on_exit()


def exit_descriptor(pid: int) -> int:
    """A descriptor that becomes readable when child ``pid`` has ended. Raises OSError."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    if sys.platform == "darwin":
        queue = select.kqueue()
        wanted = select.kevent(
            pid,
            filter=select.KQ_FILTER_PROC,
            flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
            fflags=select.KQ_NOTE_EXIT,
        )
        # The queue object closes its descriptor when collected: keep our own.
        fd = os.dup(queue.fileno())
        try:
            queue.control([wanted], 0)
        except ProcessLookupError:  # it has ended before we could ask: readable from the start
            os.close(fd)
            fd, other_end = os.pipe()
            os.close(other_end)
        except OSError:
            os.close(fd)
            raise
        return fd
    raise OSError(f"no way to watch a process on {sys.platform}")
