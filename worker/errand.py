"""Work beside the engine that can be called off at any moment, whatever it is waiting for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

from .errors import Withdrawn

Progress = Callable[[str, int, int, str], None]
"""``(stage, done, total, unit)`` of a load. May raise Withdrawn, which must pass through."""


@final
class Errand:
    """What such work is given: calling it reports progress, and raises if nobody wants it any more.

    The work runs on one thread, :meth:`call_off` may come from any other.
    """

    def __init__(self, tell: Progress) -> None:
        self._tell = tell
        self._why: str | None = None
        self._ends: list[Callable[[], None]] = []

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        """Tell how far it is. Raises Withdrawn."""
        self.check()
        self._tell(stage, done, total, unit)

    def withdrawn(self) -> Withdrawn | None:
        """Why nobody wants it any more, if that is so."""
        return None if self._why is None else Withdrawn(self._why)

    def check(self) -> None:
        """Raise Withdrawn if it was called off."""
        if (withdrawn := self.withdrawn()) is not None:
            raise withdrawn

    def call_off(self, why: str) -> None:
        """Nobody wants it any more: end at once what it waits for."""
        self._why = self._why or why
        for end in tuple(self._ends):
            end()

    @contextmanager
    def ended_by(self, end: Callable[[], None]) -> Generator[None]:
        """Inside the block a call-off calls ``end``, from its own thread; ``end`` may be called
        twice and must not wait.
        """
        self._ends.append(end)
        try:
            if self._why is not None:  # it came before ``end`` was there to be called
                end()
            yield
        finally:
            self._ends.remove(end)
