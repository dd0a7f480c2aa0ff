"""Hooks on module *instances*: for the length of a pass an instance gets a subclass of its class.

The shared class keeps its ``__call__``, so other models of that class never see a hook, and
outside the pass no instance carries one either: nothing is left behind by a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.nn as nn

Observer = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Is told the output, and the positional and keyword arguments, of a call."""


class InstanceHooks:
    """Observers of calls to chosen instances; one object serves one thread at a time."""

    def __init__(self, observed: Sequence[tuple[nn.Module, Observer]]) -> None:
        self._hooked = [
            (module, type(module), _observing(type(module), observer))
            for module, observer in observed
        ]

    @contextmanager
    def armed(self) -> Generator[None]:
        """Observe while the block runs."""
        try:
            for module, _, hooked in self._hooked:
                module.__class__ = hooked
            yield
        finally:
            for module, original, _ in self._hooked:
                module.__class__ = original


def _observing(base: type[nn.Module], observer: Observer) -> type[nn.Module]:
    call: Callable[..., Any] = base.__call__

    def observed_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output = call(self, *args, **kwargs)
        observer(output, args, kwargs)
        return output

    return type(base.__name__, (base,), {"__call__": observed_call, "__module__": base.__module__})
