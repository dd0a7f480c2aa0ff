"""When something that failed is started again."""

from __future__ import annotations

from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.restarts import pause_s, recent

LIMITS = Limits(backoff_first_s=1, backoff_limit_s=5, failures_before_fatal=6, failure_window_s=10)


def test_pauses_grow_up_to_a_limit_and_end() -> None:
    """Each failure waits longer, never longer than the limit, and at last there is no more try."""
    pauses = [pause_s([0.0] * n, LIMITS, 1.0) for n in range(1, 7)]
    assert pauses == [1, 2, 4, 5, 5, None]
    assert pause_s([0.0], LIMITS, 0.0) == 0.5


def test_old_failures_are_forgotten() -> None:
    """Only failures inside the window count."""
    assert recent([0.0, 4.0, 5.0, 12.0], 14.0, LIMITS) == [5.0, 12.0, 14.0]
