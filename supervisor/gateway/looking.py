"""Looking at the daemon: never loads a model, never disturbs it, however many look."""

from __future__ import annotations

import asyncio
import time
from typing import final

from ...protocol.client import AsyncClient
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import SnapshotBody

FRESH_S = 0.5
"""One look serves all who ask within this time."""

LOOK_S = 3.0


@final
class Lookout:
    """The daemon's last known state."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._seen: SnapshotBody | None = None
        self._seen_at_s = 0.0

    async def snapshot(self) -> SnapshotBody:
        """The state, at most FRESH_S old. Raises DflashError when the daemon does not answer."""
        async with self._lock:
            if self._seen is None or time.monotonic() - self._seen_at_s > FRESH_S:
                try:
                    async with asyncio.timeout(LOOK_S):
                        self._seen = await self._client.status()
                except TimeoutError:
                    raise DflashError(
                        ErrorCode.worker_lost, "the daemon does not answer", retryable=True
                    ) from None
                self._seen_at_s = time.monotonic()
            return self._seen
