"""What the gateway's process is told by the daemon, as its one argument."""

from __future__ import annotations

import msgspec

from ..config.http_section import HttpSection


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the daemon is, and ``[http]``."""

    runtime_dir: str
    keys_dir: str
    http: HttpSection


def written(settings: GatewaySettings) -> str:
    """As an argument; there are no secrets in it."""
    return msgspec.json.encode(settings).decode()


def read(argument: str) -> GatewaySettings:
    """From an argument. Raises msgspec.ValidationError or DecodeError."""
    return msgspec.json.decode(argument, type=GatewaySettings)
