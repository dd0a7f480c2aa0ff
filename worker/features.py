"""Capture the outputs of chosen target layers, through hooks on those layer *instances* only.

For the length of one forward pass each tapped instance gets a subclass of its own class.
The shared class keeps its ``__call__``, so other models of that class never see a hook, and
outside the pass no instance carries one either: nothing is left behind by a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn


class FeatureTap:
    """Taps on ``layers[i]`` for ``i`` in ``layer_ids``; one tap serves one thread at a time."""

    def __init__(self, layers: Sequence[nn.Module], layer_ids: Sequence[int]) -> None:
        self._outputs: dict[int, mx.array] = {}
        self._layer_ids = tuple(layer_ids)
        self._tapped: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = []
        for index in dict.fromkeys(self._layer_ids):
            layer = layers[index]
            hooked = _recording(type(layer), index, self._outputs.__setitem__)
            self._tapped.append((layer, type(layer), hooked))

    @contextmanager
    def armed(self) -> Generator[None]:
        """Record while the block runs; read :meth:`features` afterwards, unless it raised."""
        self._outputs.clear()
        try:
            for layer, _, hooked in self._tapped:
                layer.__class__ = hooked
            yield
        except BaseException:
            self._outputs.clear()
            raise
        finally:
            for layer, original, _ in self._tapped:
                layer.__class__ = original

    def features(self) -> mx.array:
        """The recorded outputs ``[B, L, len(layer_ids) * H]``, in ``layer_ids`` order; once."""
        rows = mx.concatenate([self._outputs[i] for i in self._layer_ids], axis=-1)
        self._outputs.clear()
        return rows


def _recording(
    base: type[nn.Module], index: int, record: Callable[[int, mx.array], None]
) -> type[nn.Module]:
    call: Callable[..., mx.array] = base.__call__

    def recording_call(self: nn.Module, *args: Any, **kwargs: Any) -> mx.array:
        output = call(self, *args, **kwargs)
        record(index, output)
        return output

    return type(base.__name__, (base,), {"__call__": recording_call, "__module__": base.__module__})
