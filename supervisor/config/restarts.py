"""When to start again what has failed, and when to stop trying. Pure."""

from __future__ import annotations

from .limits import Limits


def recent(failures: list[float], now: float, limits: Limits) -> list[float]:
    """The failures that still count, with one of now."""
    begin = now - limits.failure_window_s
    return [at for at in failures if at > begin] + [now]


def pause_s(failures: list[float], limits: Limits, random: float) -> float | None:
    """How long to wait after these failures, longer after each; None: no more tries.

    ``random`` from 0 to 1 spreads the restarts of what failed together.
    """
    if len(failures) >= limits.failures_before_fatal:
        return None
    longest_s = min(limits.backoff_limit_s, limits.backoff_first_s * 2.0 ** (len(failures) - 1))
    return longest_s * (0.5 + random / 2)
