"""Who is stepped next: the ready request that has had the least engine time.

A step may be a prefill chunk of seconds or a decode cycle of milliseconds, so turns are not a fair
measure and time is: beside a long prefill, a decoding request gets as many cycles as fit into the
time of one chunk. One that joins, or comes back from waiting for credit, starts level with the
one that is furthest behind: it can neither be starved nor catch up at the cost of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from .request import ActiveRequest


class Schedule:
    """Fair shares of engine time among requests."""

    def __init__(self) -> None:
        self._floor_s = 0.0
        self._turn = 0

    @property
    def floor_s(self) -> float:
        """Engine time that a request which joins now is taken to have had."""
        return self._floor_s

    def choose(self, requests: Iterable[ActiveRequest]) -> ActiveRequest | None:
        """The next to step, of those with credit; among equals the one stepped longest ago."""
        ready = [request for request in requests if request.credit > 0]
        if not ready:
            return None
        chosen = min(ready, key=lambda request: (request.served_s, request.turn))
        self._turn += 1
        chosen.turn = self._turn
        self._floor_s = max(self._floor_s, chosen.served_s)
        return chosen

    def rejoin(self, request: ActiveRequest) -> None:
        """``request`` is ready again after waiting."""
        request.served_s = max(request.served_s, self._floor_s)
