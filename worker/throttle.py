"""How often progress is told: of each stage its begin, its end, and now and then between."""

from __future__ import annotations

import time
from typing import final


@final
class Throttle:
    """Of one load."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._stage = ""
        self._passed_at_s = 0.0

    def passes(self, stage: str, done: int, total: int) -> bool:
        """Whether to tell this."""
        now_s = time.monotonic()
        more = stage == self._stage and done != total
        if more and now_s - self._passed_at_s < self._period_s:
            return False
        self._stage, self._passed_at_s = stage, now_s
        return True
