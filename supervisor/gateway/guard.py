"""What is refused before anybody looks at it: foreign names, and framing that has two readings.

A page of another site must not reach a gateway that only this machine may use. Browsers let any
site's name point to the loopback; the Host header then tells.
"""

from __future__ import annotations

from typing import final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config.http_section import is_loopback


@final
class Guard:
    """Refuses requests whose Host is neither a loopback address nor ``host``.

    None: any name is good, since keys are asked for, which no other site's page has.
    """

    def __init__(self, app: ASGIApp, host: str | None) -> None:
        self._app = app
        self._host = host and host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> PlainTextResponse | None:
        if "content-length" in headers and "transfer-encoding" in headers:
            # h11 takes it as chunked; a proxy before us may not, and smuggle a request so.
            close = {"connection": "close"}
            return PlainTextResponse("dflashd: two framings in one request\n", 400, close)
        if self._host is None:
            return None
        name = _host_name(headers.get("host", ""))
        if name != self._host and not is_loopback(name):
            return PlainTextResponse("dflashd: unknown Host; use 127.0.0.1\n", 421)
        return None


def _host_name(host: str) -> str:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()
