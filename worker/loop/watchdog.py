"""A process that hangs ends itself, even with the GIL held."""

from __future__ import annotations

import faulthandler

HANG_S = 900.0
"""No single step, nor the silence between two progress calls of a load, takes this long."""


class Watchdog:
    """Ends the process, with every thread's stack in the log, when ``beat`` stays away too long.

    The timer is the C library's, so that it fires with the GIL held too.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._armed_at_s: float | None = None

    def beat(self, now_s: float) -> None:
        """Work moved at ``now_s``; the timer starts anew (lazily: arming starts a thread)."""
        if self._armed_at_s is not None and now_s - self._armed_at_s < self._limit_s / 10:
            return
        faulthandler.dump_traceback_later(self._limit_s, exit=True)
        self._armed_at_s = now_s

    def rest(self) -> None:
        """There is no work, so nothing can hang."""
        if self._armed_at_s is not None:
            faulthandler.cancel_dump_traceback_later()
            self._armed_at_s = None
