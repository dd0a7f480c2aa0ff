"""How many requests are answered at a time, and how many of one client. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from .problem import Problem


@final
class Admission:
    """Counts who is inside."""

    def __init__(self, limit: int, limit_per_client: int) -> None:
        self._limit = limit
        self._limit_per_client = limit_per_client
        self._inside: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are inside."""
        return self._inside.total()

    @contextmanager
    def admitted(self, client: str) -> Generator[None]:
        """Be inside for a while. Raises Problem(429) when there is no room."""
        if self.count >= self._limit:
            raise _full(f"the gateway answers {self._limit} requests at a time")
        if self._inside[client] >= self._limit_per_client:
            raise _full(f"one client has {self._limit_per_client} requests answered at a time")
        self._inside[client] += 1
        try:
            yield
        finally:
            self._inside[client] -= 1
            if not self._inside[client]:
                del self._inside[client]


def _full(why: str) -> Problem:
    return Problem(status=429, code="overloaded", message=f"{why}: try again later", retryable=True)
