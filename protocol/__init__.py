"""Messages, codec, errors and the client library of dflashd.

Names are loaded when they are first used: importing this package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import AsyncClient
    from .daemon import Daemon
    from .errors import DflashError, ErrorCode
    from .generation import Completion, Generation
    from .messages import (
        CacheBody,
        ChatMessage,
        ChunkBody,
        DoneBody,
        EventBody,
        MetricsBody,
        SnapshotBody,
    )
    from .sync import Client
    from .told import LogText

__all__ = [
    "AsyncClient",
    "CacheBody",
    "ChatMessage",
    "ChunkBody",
    "Client",
    "Completion",
    "Daemon",
    "DflashError",
    "DoneBody",
    "ErrorCode",
    "EventBody",
    "Generation",
    "LogText",
    "MetricsBody",
    "SnapshotBody",
]

_HOMES = {
    "AsyncClient": "client",
    "CacheBody": "messages",
    "ChatMessage": "messages",
    "ChunkBody": "messages",
    "Client": "sync",
    "Completion": "generation",
    "Daemon": "daemon",
    "DflashError": "errors",
    "DoneBody": "messages",
    "ErrorCode": "errors",
    "EventBody": "messages",
    "Generation": "generation",
    "LogText": "told",
    "MetricsBody": "messages",
    "SnapshotBody": "messages",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
