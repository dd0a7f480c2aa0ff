"""What a class looks like, and whether somebody changed it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import mlx.nn as nn

_BASES = frozenset(nn.Module.__mro__)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The members of a class and of its bases below ``nn.Module``, by identity."""

    members: tuple[tuple[type, dict[str, Any]], ...]

    @classmethod
    def of(cls, hooked: type) -> Fingerprint:
        """As the class is now."""
        return cls(tuple((base, dict(vars(base))) for base in _own(hooked)))

    def change(self) -> str | None:
        """The first member that is not what it was, as ``Class.member``; None: all are."""
        for base, before in self.members:
            now = vars(base)
            for name in before.keys() | now.keys():
                if name not in before or name not in now or before[name] is not now[name]:
                    return f"{base.__qualname__}.{name}"
        return None


def foreign_member(cls: type) -> str | None:
    """A method of ``cls`` that was not written where the class was, or None.

    A method's globals are those of the module that holds its code: a patch cannot hide them, not
    even one that took over the original's name. Only for classes of mlx-lm, which builds none of
    its layers at run time.
    """
    for base in _own(cls):
        if not base.__module__.startswith("mlx_lm."):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "fget", member)
            if isinstance(function, FunctionType) and not _at_home(function, base):
                return f"{base.__qualname__}.{name}"
    return None


def replaced(cls: type) -> bool:
    """Whether the name of an mlx-lm class now stands for something else, or never was its own."""
    module = sys.modules.get(cls.__module__)
    named = getattr(module, cls.__qualname__, None)
    return cls.__module__.startswith("mlx_lm.") and named is not cls


def _at_home(function: FunctionType, base: type) -> bool:
    home = vars(sys.modules[base.__module__])
    # A dataclass writes some of its methods itself, with globals of its own.
    return function.__globals__ is home or function.__code__.co_filename == "<string>"


def _own(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base not in _BASES]
