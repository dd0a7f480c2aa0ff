"""The model process of dflashd, and its engine as a library (:class:`Host`).

Names are loaded when they are first used: importing this package costs next to nothing, and mlx is
imported when a host is made, after the BLAS that it is to use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..protocol.errors import DflashError, ErrorCode
    from .host.answer import Answer
    from .host.host import Host
    from .host.pending_loads import LoadProgress
    from .host.statistics import HostStatistics, ModelStatistics

__all__ = [
    "Answer",
    "DflashError",
    "ErrorCode",
    "Host",
    "HostStatistics",
    "LoadProgress",
    "ModelStatistics",
]

_HOMES = {
    "Answer": ".host.answer",
    "DflashError": "..protocol.errors",
    "ErrorCode": "..protocol.errors",
    "Host": ".host.host",
    "HostStatistics": ".host.statistics",
    "LoadProgress": ".host.pending_loads",
    "ModelStatistics": ".host.statistics",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
