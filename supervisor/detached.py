"""Work that may hang: on a thread that neither the loop nor the interpreter's end waits for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def detached(name: str, work: Callable[[], T], deliver: Callable[[T], None]) -> None:
    """Begin ``work``, which raises nothing; ``deliver`` gets its outcome in the loop, if ever."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        outcome = work()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody asks any more
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
