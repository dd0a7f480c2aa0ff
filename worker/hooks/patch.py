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
    """Stands in for ``cls.method``. Arming is per thread, and nests: the newest handler answers.

    Raises:
        TypeError: the class has no such method.
    """

    def __init__(self, cls: type, method: str) -> None:
        original: Any = inspect.getattr_static(cls, method, None)
        if not inspect.isfunction(original):
            raise TypeError(f"{cls.__qualname__}.{method} is no method that could be patched")
        self.cls = cls
        self.method = method
        self._inherited = method not in vars(cls)
        self._original: Original = original
        self._armed = threading.local()
        self._known, self._any_keyword = _keywords(original)
        self.standing = self._made()
        """What is in the method's place."""

    @property
    def in_place(self) -> bool:
        """Whether calls still come here first."""
        return vars(self.cls).get(self.method) is self.standing

    def install(self) -> None:
        """Take the method's place."""
        setattr(self.cls, self.method, self.standing)

    def restore(self) -> bool:
        """Give the place back; False if other code has taken it meanwhile.

        What then still calls the patch reaches the original: nobody can arm it any more.
        """
        if not self.in_place:
            return False
        if self._inherited:
            delattr(self.cls, self.method)
        else:
            setattr(self.cls, self.method, self._original)
        return True

    def arm(self, handler: Handler) -> None:
        """Calls of this thread reach ``handler`` until :meth:`disarm`."""
        self._handlers().append(handler)

    def disarm(self) -> None:
        """End the newest :meth:`arm` of this thread."""
        self._handlers().pop()

    def _handlers(self) -> list[Handler]:
        handlers: list[Handler] | None = getattr(self._armed, "handlers", None)
        if handlers is None:
            handlers = self._armed.handlers = list[Handler]()
        return handlers

    def _made(self) -> Original:
        original = self._original

        @functools.wraps(original)
        def dispatching(instance: Any, *args: Any, **kwargs: Any) -> Any:
            handlers = self._handlers()
            if handlers and not self._foreign(args, kwargs):
                return handlers[-1](original, instance, *args, **kwargs)
            return original(instance, *args, **kwargs)

        return dispatching

    def _foreign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A call that is not one of ours: a batch's caches, or keywords the method has not."""
        values = (*args, *kwargs.values())
        batch = any(isinstance(getattr(value, "offset", None), mx.array) for value in values)
        return batch or not (self._any_keyword or kwargs.keys() <= self._known)


def _keywords(method: Original) -> tuple[frozenset[str], bool]:
    """The keywords a method names, and whether it takes any other."""
    parameters = inspect.signature(method).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return (
        frozenset(parameter.name for parameter in parameters if parameter.kind in named),
        any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
    )
