"""The gateway's own limits and last resorts, without a daemon behind it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dflashd.protocol import AsyncClient, DflashError, ErrorCode
from dflashd.supervisor.config.http_section import HttpSection
from dflashd.supervisor.gateway import looking
from dflashd.supervisor.gateway.access import Access
from dflashd.supervisor.gateway.admission import Admission
from dflashd.supervisor.gateway.conversation import Conversation
from dflashd.supervisor.gateway.dialects.chat import Chat
from dflashd.supervisor.gateway.looking import Fresh
from dflashd.supervisor.gateway.server import server
from dflashd.supervisor.gateway.tally import Tally


def test_those_who_wait_for_anothers_look_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look at a daemon that hangs, each is told so in the time of one look."""
    monkeypatch.setattr(looking, "LOOK_S", 0.2)

    async def hang() -> int:
        await asyncio.sleep(3600)
        return 0

    async def look() -> float:
        fresh, began_s = Fresh(hang), time.monotonic()
        looks = (fresh.get() for _ in range(20))
        for error in await asyncio.gather(*looks, return_exceptions=True):
            assert isinstance(error, DflashError)
            assert error.code is ErrorCode.worker_lost
        return time.monotonic() - began_s

    assert asyncio.run(look()) < 2


def test_a_short_idle_time_is_not_none() -> None:
    """uvicorn counts in whole seconds; less than one of them must not end every connection."""
    assert server(object(), HttpSection(idle_timeout_s=0.5)).config.timeout_keep_alive == 1


class Broken:
    """A dialect with a mistake in it."""

    error = Chat().error

    def read(self, data: bytes) -> NoReturn:
        raise ZeroDivisionError


def test_a_mistake_of_ours_is_a_500_in_the_clients_shape(tmp_path: Path) -> None:
    """An exception that nobody foresaw is answered as an error that clients can read."""
    http = HttpSection()
    conversation = Conversation(
        Broken(),
        AsyncClient(tmp_path),
        http,
        access=Access(http, tmp_path),
        admission=Admission(1, 1),
        tally=Tally(),
    )
    sent: list[dict[str, Any]] = []
    asyncio.run(conversation(SCOPE, receive, collect(sent)))
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["error"]["code"] == "internal"


SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/chat/completions",
    "headers": [(b"content-type", b"application/json")],
    "client": ("127.0.0.1", 9),
}


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}"}


def collect(sent: list[dict[str, Any]]) -> Callable[[Any], Awaitable[None]]:
    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    return send
