"""The way back to one client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import final

from starlette.types import Send

from .events import WAITING

SILENCE_S = 10.0
"""A stream that says nothing for so long says that it lives."""

_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
_WHOLE = {"content-type": "application/json", "cache-control": "no-store"}


@final
class Outlet:
    """Sends a whole answer, or a stream whose status is open until its first event."""

    def __init__(self, send: Send) -> None:
        self.id = f"req_{secrets.token_hex(8)}"
        """By which an answer is found in the log."""
        self._send = send
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._said_at = self._loop.time()
        self.started = False
        self.status = 0

    async def whole(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """The answer in one piece."""
        length = {"content-length": str(len(body))}
        await self._start(status, {**_WHOLE, **length, **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})

    async def say(self, data: bytes) -> None:
        """Some events; waits while the client does not take them."""
        if not data:
            return
        async with self._lock:
            if not self.started:
                await self._start(200, _STREAM)
            self._said_at = self._loop.time()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Nothing follows."""
        async with self._lock:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(self) -> None:
        """Break long silences until cancelled."""
        while True:
            silent_s = self._loop.time() - self._said_at
            if silent_s >= SILENCE_S:
                await self.say(WAITING)
            else:
                await asyncio.sleep(SILENCE_S - silent_s)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        self.status = status
        # Where OpenAI's and Anthropic's clients look for it.
        told = {**headers, "x-request-id": self.id, "request-id": self.id}
        pairs = [(name.encode(), value.encode()) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
