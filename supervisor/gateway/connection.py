"""One HTTP connection that waits for nobody for ever.

uvicorn bounds the time between requests only. Here a client that sends its headers drop by drop,
or does not take its answer, is cut off as well.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..config.http_section import HttpSection
from ..logs.log import line, log


class PatientConnection(H11Protocol):
    """h11 is strict about framing: what could be read in two ways is refused and cut off."""

    limits = HttpSection()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._asked = False
        self._headers_due: asyncio.TimerHandle | None = None
        self._write_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._asked = self._asked or self.conn.their_state is not h11.IDLE
        self._await_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_due = _cancelled(self._headers_due)
        self._write_due = _cancelled(self._write_due)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        due_s = self.limits.write_timeout_s
        self._write_due = self.loop.call_later(due_s, self._cut, "takes nothing")

    def resume_writing(self) -> None:
        self._write_due = _cancelled(self._write_due)
        super().resume_writing()

    def _await_headers(self) -> None:
        """A request that has begun must be whole in time; the first is due from the start."""
        begun = not self._asked or bool(self.conn.trailing_data[0])
        if self.conn.their_state is not h11.IDLE or not begun:
            self._headers_due = _cancelled(self._headers_due)
        elif self._headers_due is None:
            due_s = self.limits.header_timeout_s
            self._headers_due = self.loop.call_later(due_s, self._cut, "sends no headers")

    def _cut(self, why: str) -> None:
        log.info(line("http_connection_cut", client=self.client, why=why))
        self.transport.abort()


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
