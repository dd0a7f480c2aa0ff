"""What the daemon looks at again and again, since nobody calls when it changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import final

from .core.events import TimePassed
from .core.metrics import Histogram
from .open_files import OpenFiles
from .switchboard import Switchboard

TICK_S = 0.25
"""Longest time between two looks at the clock: a new deadline may be nearer than the last."""

FLUSH_S = 0.01
"""Time between two tries to send to a peer whose pipe is full."""

FAREWELL_S = 1.0
"""How long last messages may take to leave when the daemon stops."""

LAST_READ_S = 0.1
"""Time for clients to read their last messages: ZeroMQ drops at their side what is unread when
the connection goes.
"""


@final
class Pulse:
    """The clock, the outboxes, the descriptors, and ``looks``, which are cheap.

    ``lag`` gets how late the loop came to each beat.
    """

    def __init__(
        self, board: Switchboard, looks: Sequence[Callable[[], object]], lag: Histogram
    ) -> None:
        self._board = board
        self._looks = looks
        self._lag = lag
        self._open_files = OpenFiles()

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            for look in (*self._looks, self._tick):
                try:
                    look()
                except Exception:  # noqa: BLE001 (a mistake of ours must not take every model down)
                    self._board.mistake(look)
            rest_s = self._rest_s()
            due_s = time.monotonic() + rest_s
            await asyncio.sleep(rest_s)
            self._lag.observe(max(0.0, time.monotonic() - due_s))

    def _tick(self) -> None:
        self._board.flush()
        self._board.give(TimePassed())
        self._board.turn()
        if self._open_files.look():
            self._board.let_in(new_clients=not self._open_files.are_short)

    def _rest_s(self) -> float:
        left_s = self._board.next_deadline - time.monotonic()
        soon_s = FLUSH_S if self._board.is_behind else min(TICK_S, left_s)
        return max(FLUSH_S, min(soon_s, self._open_files.look_s))


async def say_farewell(board: Switchboard) -> None:
    """Let last messages leave, and be read."""
    end = time.monotonic() + FAREWELL_S
    while board.is_behind and time.monotonic() < end:
        board.flush()
        await asyncio.sleep(FLUSH_S)
    await asyncio.sleep(LAST_READ_S)
