"""Who asks. The one place that knows about keys."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from ..config.http_section import HttpSection
from ..errors import KeyRefused
from ..keys import http_keys
from ..keys.http_keys import NO_KEY, HttpKey, holder
from ..keys.watched import WatchedKeys
from .problem import Problem

LOOK_S = 0.5
"""How long an answer under way may go on after its key was revoked."""

KEY_CHARACTERS = 256
"""More is no key, and not worth a digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whose share of the gateway a request uses: a key's, or an address's where none are asked."""

    name: str
    digest: str | None = None


@final
class Access:
    """Judges requests by the keys that are allowed at that moment."""

    def __init__(self, http: HttpSection, folder: Path) -> None:
        self._asks = http.asks_for_keys
        self._keys: WatchedKeys[HttpKey] = WatchedKeys(folder / http_keys.NAME, http_keys.http_keys)
        _ = self._keys.look()

    def check(self) -> None:
        """Raise KeyRefused if everybody would be refused: then there is no use in listening."""
        if self._asks and not self._keys.keys:
            raise KeyRefused(self._keys.problem or NO_KEY)

    def authorise(self, request: HTTPConnection) -> Principal:
        """Who asks. Raises Problem(401) for a client that may not."""
        if not self._asks:
            # On the loopback every local user is the same principal by address.
            return Principal(name=request.client.host if request.client is not None else "unknown")
        _ = self._keys.look()
        key = holder(self._keys.keys, presented(request.headers))
        if key is None:
            raise unauthorised("give an API key of this dflashd: Authorization: Bearer KEY")
        return Principal(name=f"key {key.name}", digest=key.digest)

    async def until_revoked(self, principal: Principal) -> None:
        """Return never; raise Problem(401) as soon as the key of a request under way is revoked."""
        while True:
            await asyncio.sleep(LOOK_S)
            _ = self._keys.look()
            digests = (key.digest for key in self._keys.keys)
            if principal.digest is not None and principal.digest not in digests:
                raise unauthorised("this API key was revoked")


def unauthorised(message: str) -> Problem:
    """Nobody is told whether a key was wrong, old, or missing."""
    return Problem(status=401, code="invalid_api_key", message=message)


def presented(headers: Headers) -> str:
    """The key in a request's headers; empty if there is none, or more than one."""
    found = set(headers.getlist("x-api-key"))
    for value in headers.getlist("authorization"):
        scheme, _, rest = value.partition(" ")
        if scheme.lower() == "bearer":
            found.add(rest.strip())
        elif scheme.lower() == "basic":  # what browsers ask their users for, and Prometheus has
            found.add(password_of(rest))
    key = found.pop() if len(found) == 1 else ""
    return key if len(key) <= KEY_CHARACTERS else ""


def password_of(credentials: str) -> str:
    """The password of basic authentication; the user's name does not matter."""
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.partition(":")[2]
