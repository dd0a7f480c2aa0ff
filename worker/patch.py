"""One patched method of a class: dispatches to a handler for those who armed it, else passes on."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx

Original = Callable[..., Any]
Handler = Callable[..., Any]
"""Called as ``handler(original, instance, *args, **kwargs)``."""


class Patch:
    """Stands in for ``cls.method``. Arming is per thread, and nests."""

    def __init__(self, cls: type, method: str, handler: Handler) -> None:
        self.method = method
        self._cls = cls
        self._inherited = method not in vars(cls)
        self._original: Original = getattr(cls, method)
        self._handler = handler
        self._depth = threading.local()
        self._known = _keywords(self._original)
        self._standing = self._made()

    def install(self) -> None:
        """Take the method's place."""
        setattr(self._cls, self.method, self._standing)

    def restore(self) -> bool:
        """Give the place back; False if other code has taken it meanwhile.

        What then still calls the patch reaches the original: nobody can arm it any more.
        """
        if vars(self._cls).get(self.method) is not self._standing:
            return False
        if self._inherited:
            delattr(self._cls, self.method)
        else:
            setattr(self._cls, self.method, self._original)
        return True

    def arm(self) -> None:
        """Calls of this thread reach the handler until :meth:`disarm`."""
        self._depth.value = getattr(self._depth, "value", 0) + 1

    def disarm(self) -> None:
        """End one :meth:`arm`."""
        self._depth.value -= 1

    def _made(self) -> Original:
        original = self._original

        @functools.wraps(original)
        def dispatching(instance: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._depth, "value", 0) and not self._foreign(args, kwargs):
                return self._handler(original, instance, *args, **kwargs)
            return original(instance, *args, **kwargs)

        return dispatching

    def _foreign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A call that is not one of ours: a batch's caches, or keywords the method has not."""
        values = (*args, *kwargs.values())
        batch = any(isinstance(getattr(value, "offset", None), mx.array) for value in values)
        return batch or not kwargs.keys() <= self._known


def _keywords(method: Original) -> frozenset[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(method).parameters.values()
    return frozenset(parameter.name for parameter in parameters if parameter.kind in kinds)
