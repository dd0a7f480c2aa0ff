"""How fast requests are served, so that whoever is refused hears an honest time."""

from __future__ import annotations

from .life import SERVED
from .records import Model, Request
from .state import State

WEIGHT = 0.2
"""Of the newest measurement in a running mean."""

UNMEASURED_S = 5.0
SHARE_SERVED = 4
"""Who is refused may come back when one in so many of those who wait has been served."""

SHORTEST_S, LONGEST_S = 1.0, 600.0


def served(model: Model, request: Request, now: float) -> None:
    """A request was computed to its end."""
    model.service_s = mean(model.service_s, now - request.leased_at)


def loaded(model: Model, now: float) -> None:
    """A load came to its end."""
    model.load_s = mean(model.load_s, now - model.began_at)


def mean(before: float | None, newest: float) -> float:
    """A running mean."""
    return newest if before is None else before + WEIGHT * (newest - before)


def retry_after_s(s: State, model: Model) -> float:
    """When a place in the queue of a model can be expected to be free."""
    service_s = UNMEASURED_S if model.service_s is None else model.service_s
    ahead = max(1, len(model.queue) // SHARE_SERVED)
    wait_s = ahead * service_s / s.limits.active_requests_per_worker
    if model.state not in SERVED:
        wait_s += UNMEASURED_S if model.load_s is None else model.load_s
    return min(LONGEST_S, max(SHORTEST_S, wait_s))
