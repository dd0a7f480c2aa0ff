"""Hooks on module *instances*: for the length of a pass an instance gets a subclass of its class.

The shared class keeps its ``__call__``, so other models of that class never see a hook, and
outside the pass no instance carries one either: nothing is left behind by a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mlx.nn as nn

from ..errors import DFlashHookConflict

Observer = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Is told the output, and the positional and keyword arguments, of a call."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """One instance: the class it has outside a pass, that class's call, and who is told."""

    module: nn.Module
    original: type[nn.Module]
    call: Callable[..., Any]
    observer: Observer


class InstanceHooks:
    """Observers of calls to chosen instances; one object serves one thread at a time."""

    def __init__(self, observed: Sequence[tuple[nn.Module, Observer]]) -> None:
        self._watches = [
            _Watch(module, type(module), type(module).__call__, observer)
            for module, observer in observed
        ]

    @contextmanager
    def armed(self) -> Generator[None]:
        """Observe while the block runs.

        Raises:
            DFlashHookConflict: other code gave an instance a class of its own.
        """
        armed: list[tuple[_Watch, _Watched]] = []
        try:
            for watch in self._watches:
                # One by one: after a conflict those before it are disarmed.
                armed.append((watch, _arm(watch)))  # noqa: PERF401
            yield
        finally:
            taken = [watch for watch, watched in armed if not _disarm(watch, watched)]
        if taken:
            raise _conflict(taken[0])


@dataclass(frozen=True, slots=True)
class _Watched:
    """The subclass that instances of a class have while they are watched, and their watches."""

    subclass: type[nn.Module]
    watches: dict[int, _Watch]


@lru_cache(maxsize=256)
def _watched(base: type[nn.Module]) -> _Watched:
    """Made once for each class: classes are costly to make and refer to themselves."""
    watches: dict[int, _Watch] = {}

    def watched_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        watch = watches[id(self)]
        output = watch.call(self, *args, **kwargs)
        watch.observer(output, args, kwargs)
        return output

    members = {"__call__": watched_call, "__module__": base.__module__}
    return _Watched(type(base.__name__, (base,), members), watches)


def _arm(watch: _Watch) -> _Watched:
    if type(watch.module) is not watch.original:
        raise _conflict(watch)
    watched = _watched(watch.original)
    watched.watches[id(watch.module)] = watch
    watch.module.__class__ = watched.subclass
    return watched


def _disarm(watch: _Watch, watched: _Watched) -> bool:
    """Give the class back; False, and hands off, if other code has put its own over ours."""
    if type(watch.module) is not watched.subclass:
        return False
    watch.module.__class__ = watch.original
    del watched.watches[id(watch.module)]
    return True


def _conflict(watch: _Watch) -> DFlashHookConflict:
    return DFlashHookConflict(
        f"an instance of {watch.original.__module__}.{watch.original.__qualname__} was given the "
        f"class {type(watch.module).__qualname__} by other code while it is hooked"
    )
