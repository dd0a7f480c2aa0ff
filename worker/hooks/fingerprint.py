"""What a class looks like, and whether somebody changed it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from types import FunctionType, GetSetDescriptorType
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

    def with_member(self, cls: type, name: str) -> Fingerprint:
        """The same, but for that member, which is taken as it is now."""
        return Fingerprint(
            tuple(
                (base, _with(before, name, vars(cls))) if base is cls else (base, before)
                for base, before in self.members
            )
        )


def foreign_member(cls: type, ours: Sequence[Any] = ()) -> str | None:
    """A member of ``cls`` that was not written where the class was, or None; ``ours`` apart.

    A method's globals are those of the module that holds its code: a patch cannot hide them, not
    even one that took over the original's name. Only for classes of mlx-lm, which builds none of
    its layers at run time and gives them functions, properties and plain data, nothing else.
    """
    for base in _own(cls):
        if not base.__module__.startswith("mlx_lm."):
            continue
        for name, member in vars(base).items():
            known = any(member is one for one in ours)
            if not known and not _written_with(base, member):
                return f"{base.__qualname__}.{name}"
    return None


def replaced(cls: type) -> bool:
    """Whether the name of an mlx-lm class now stands for something else, or never was its own."""
    module = sys.modules.get(cls.__module__)
    named = getattr(module, cls.__qualname__, None)
    return cls.__module__.startswith("mlx_lm.") and named is not cls


def _with(before: dict[str, Any], name: str, now: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in before.items() if key != name}
    return kept | ({name: now[name]} if name in now else {})


def _written_with(base: type, member: Any) -> bool:
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if isinstance(member, property):
        return all(
            function is None or _written_with(base, function)
            for function in (member.fget, member.fset, member.fdel)
        )
    if isinstance(member, FunctionType):
        return _at_home(member, base)
    # What Python itself gives each class: __dict__, __weakref__, __module__ ...
    return isinstance(member, GetSetDescriptorType) or not (
        callable(member) or hasattr(member, "__get__")
    )


def _at_home(function: FunctionType, base: type) -> bool:
    home = getattr(sys.modules.get(base.__module__), "__dict__", None)
    # A dataclass writes some of its methods itself, with globals of its own.
    written = function.__code__.co_filename == "<string>" and is_dataclass(base)
    return written or function.__globals__ is home


def _own(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base not in _BASES]
