"""Looking at the daemon: never loads a model, never disturbs it, however many look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, final

from ...protocol.client import AsyncClient
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import EventBody

T = TypeVar("T")

FRESH_S = 0.5
"""One look serves all who ask within this time."""

LOOK_S = 3.0
EVENTS = 30


@final
class Fresh(Generic[T]):
    """A value of the daemon's that is at most FRESH_S old."""

    def __init__(self, fetch: Callable[[], Awaitable[T]]) -> None:
        self._fetch = fetch
        self._lock = asyncio.Lock()
        self._seen: T | None = None
        self._seen_at_s = 0.0

    async def get(self) -> T:
        """The value. Raises DflashError when the daemon does not answer in time."""
        try:
            # Those who wait for another's look are in here, too: none would ever end, one by one.
            async with asyncio.timeout(LOOK_S), self._lock:
                if self._seen is None or time.monotonic() - self._seen_at_s > FRESH_S:
                    self._seen = await self._fetch()
                    self._seen_at_s = time.monotonic()
                return self._seen
        except TimeoutError:
            raise DflashError(
                ErrorCode.worker_lost, "the daemon does not answer", retryable=True
            ) from None


@final
class Sight:
    """What can be seen of the daemon."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.snapshot = Fresh(client.status)
        self.metrics = Fresh(client.metrics)
        self.events = Fresh(self._last_events)

    async def _last_events(self) -> list[EventBody]:
        return [event async for event in self._client.events(last=EVENTS)]
