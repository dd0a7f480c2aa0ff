"""Who asks. The one place that knows about keys."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whose share of the gateway a request uses."""

    name: str


def authorise(request: HTTPConnection) -> Principal:
    """Who asks. Raises Problem(401) for a client that may not.

    The gateway listens on the loopback only, where every local user is the same principal by
    address; keys in requests are not looked at.
    """
    return Principal(name=request.client.host if request.client is not None else "unknown")
