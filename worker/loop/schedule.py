"""Who is stepped next: the ready request that has had the least engine time.

A step may be a prefill chunk of seconds or a decode cycle of milliseconds, so turns are not a fair
measure and time is: beside a long prefill, a decoding request gets as many cycles as fit into the
time of one chunk. One that joins, or comes back from waiting for credit, starts at the time that
an equal share would have given it by now (the virtual time of fair queueing): it does not catch
up at the cost of the others, nor can a steady stream of newcomers starve those that were there.
"""

from __future__ import annotations

from collections.abc import Iterable

from .request import ActiveRequest


class Schedule:
    """Fair shares of engine time among requests."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        self._sharing = 1
        self._turn = 0

    def join(self, request: ActiveRequest) -> None:
        """``request`` is new, or ready again after waiting."""
        request.served_s = max(request.served_s, self._virtual_s)

    def choose(self, requests: Iterable[ActiveRequest]) -> ActiveRequest | None:
        """The next to step, of those with credit; among equals the one stepped longest ago."""
        ready = [request for request in requests if request.credit.open]
        if not ready:
            return None
        chosen = min(ready, key=lambda request: (request.served_s, request.turn))
        self._turn += 1
        chosen.turn = self._turn
        self._virtual_s = max(self._virtual_s, chosen.served_s)
        self._sharing = len(ready)
        return chosen

    def charge(self, chosen: ActiveRequest, spent_s: float) -> None:
        """The step of the one chosen last took that long."""
        chosen.served_s += spent_s
        self._virtual_s += spent_s / self._sharing
