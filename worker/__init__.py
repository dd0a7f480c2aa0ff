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
    from .host.desk import LoadProgress
    from .host.host import Host, HostStatistics, ModelStatistics

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
    "HostStatistics": ".host.host",
    "LoadProgress": ".host.desk",
    "ModelStatistics": ".host.host",
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
