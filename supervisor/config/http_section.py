"""``[http]``: where the gateway listens, and what one client may take of it."""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec
from typing import Annotated

from msgspec import Meta, Struct

from .limits import Bound, Duration

FilePath = Annotated[str, Meta(pattern=r"^[^\0]+$")]


class HttpSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP gateway; it runs when the section is there."""

    host: Annotated[
        str,
        Meta(min_length=1, max_length=255, description="address to listen at"),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8383
    connections: Annotated[Bound, Meta(description="open at a time; more are turned away")] = 512
    active_requests: Annotated[
        Bound, Meta(description="answered at a time; more are refused with status 429")
    ] = 128
    active_requests_per_client: Annotated[
        Bound, Meta(description="the same of one key, or of one address where there are no keys")
    ] = 64
    header_bytes: Annotated[int, Meta(ge=1024, le=2**20)] = 65_536
    body_bytes: Annotated[int, Meta(ge=1024, le=2**25)] = 16 * 2**20
    header_timeout_s: Annotated[
        Duration, Meta(description="from the begin of a connection to the end of its headers")
    ] = 15
    body_timeout_s: Annotated[Duration, Meta(description="from there to the end of its body")] = 60
    idle_timeout_s: Annotated[Duration, Meta(description="between two requests")] = 75
    write_timeout_s: Annotated[
        Duration, Meta(description="a client that takes nothing for so long is cut off")
    ] = 30
    request_timeout_s: Annotated[
        Duration, Meta(description="for a whole answer, loading the model included")
    ] = 3600

    require_keys: Annotated[
        bool, Meta(description="ask for API keys on the loopback, too; beyond it always")
    ] = False
    tls_certificate: Annotated[
        FilePath | None, Meta(description="PEM file: the certificate and those above it")
    ] = None
    tls_key: Annotated[FilePath | None, Meta(description="PEM file: its private key")] = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_key else 'http'}://{host}:{self.port}"

    @property
    def asks_for_keys(self) -> bool:
        """Whether nobody is answered without an API key."""
        return self.require_keys or not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether ``host`` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def packages_missing() -> list[str]:
    """Those of the gateway's own packages that are not installed."""
    names = ("starlette", "uvicorn", "h11", "prometheus_client")
    return [name for name in names if find_spec(name) is None]
