"""The body of a request, within its limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import Receive

from ..config.http_section import HttpSection
from .problem import Problem


class ClientLeft(Exception):
    """The client closed the connection: there is nobody to answer."""


async def body_of(request: Request, receive: Receive, limits: HttpSection) -> bytes:
    """Read a JSON body. Raises Problem (400, 408, 413, 415) or ClientLeft."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        # Also what keeps other sites' pages out: they may not send this without our leave.
        message = "send a JSON body with content-type: application/json"
        raise Problem(status=415, code="bad_request", message=message)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.body_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _read(receive, limits)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_timeout_s:g} seconds"
        raise Problem(status=408, code="deadline", message=message, retryable=True) from None


async def _read(receive: Receive, limits: HttpSection) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limits: HttpSection) -> Problem:
    message = f"the body is larger than {limits.body_bytes} bytes"
    return Problem(status=413, code="bad_request", message=message)
