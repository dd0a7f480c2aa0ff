"""When to start again what has failed, and when to stop trying. Pure."""

from __future__ import annotations

from .limits import Limits


def recent(failures: list[float], now: float, limits: Limits) -> list[float]:
    """The failures that still count, ``now`` included as one of them."""
    return [at for at in failures if at > now - limits.failure_window_s] + [now]


def pause_s(failures: int, limits: Limits, random: float) -> float | None:
    """How long to wait after so many failures, longer each time; None: no more tries.

    ``random`` from 0 to 1 spreads the restarts of what failed together.
    """
    if failures >= limits.failures_before_fatal:
        return None
    longest_s = min(limits.backoff_limit_s, limits.backoff_first_s * 2.0 ** (failures - 1))
    return longest_s * (0.5 + random / 2)
