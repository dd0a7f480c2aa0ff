"""Server-sent events, JSON in and bytes out. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

WAITING = b": waiting\n\n"
"""A comment: tells clients and proxies that the connection lives."""

DONE = b"data: [DONE]\n\n"


def json(value: Any) -> bytes:
    """A value as JSON."""
    return _encode(value)


def event(value: Any, name: str | None = None) -> bytes:
    """One event."""
    data = b"data: " + _encode(value) + b"\n\n"
    return data if name is None else f"event: {name}\n".encode() + data
