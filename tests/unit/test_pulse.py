"""The daemon's pulse: what is looked at goes on being looked at."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dflashd.supervisor.core.events import TimePassed
from dflashd.supervisor.core.metrics import Histogram
from dflashd.supervisor.pulse import Pulse


class Board:
    """A switchboard that only remembers."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.mistakes: list[object] = []
        self.is_behind = False
        self.third_beat = asyncio.Event()

    @property
    def next_deadline(self) -> float:
        return time.monotonic()

    def flush(self) -> None:
        pass

    def turn(self) -> None:
        pass

    def let_in(self, *, new_clients: bool) -> None:
        pass

    def mistake(self, cause: object) -> None:
        self.mistakes.append(cause)

    def give(self, event: object) -> None:
        self.events.append(event)
        if len(self.events) == 3:
            self.third_beat.set()


def test_look_that_fails_keeps_no_other_from_happening() -> None:
    """A mistake in one of them is counted each time, and time passes for the core all the same."""

    async def scene() -> None:
        board: Any = Board()
        looked: list[int] = []

        def fails() -> None:
            raise RuntimeError("a mistake")

        pulse = Pulse(board, [fails, lambda: looked.append(1)], Histogram())
        task = asyncio.create_task(pulse.run())
        async with asyncio.timeout(10):
            await board.third_beat.wait()
        task.cancel()
        assert board.mistakes == [fails] * 3
        assert looked == [1, 1, 1]
        assert board.events == [TimePassed()] * 3

    asyncio.run(scene())
