"""Capture the outputs of chosen target layers, through hooks on those layer *instances* only."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..hooks.instances import InstanceHooks, Observer


class FeatureTap:
    """Taps on ``layers[i]`` for ``i`` in ``layer_ids``; one tap serves one thread at a time."""

    def __init__(self, layers: Sequence[nn.Module], layer_ids: Sequence[int]) -> None:
        self._outputs: dict[int, mx.array] = {}
        self._layer_ids = tuple(layer_ids)
        tapped = dict.fromkeys(self._layer_ids)
        self._hooks = InstanceHooks([(layers[i], _recorder(self._outputs, i)) for i in tapped])

    @contextmanager
    def armed(self) -> Generator[None]:
        """Record while the block runs; read :meth:`features` afterwards, unless it raised."""
        self._outputs.clear()
        try:
            with self._hooks.armed():
                yield
        except BaseException:
            self._outputs.clear()
            raise

    def features(self) -> mx.array:
        """The recorded outputs ``[B, L, len(layer_ids) * H]``, in ``layer_ids`` order; once."""
        rows = mx.concatenate([self._outputs[i] for i in self._layer_ids], axis=-1)
        self._outputs.clear()
        return rows


def _recorder(outputs: dict[int, mx.array], index: int) -> Observer:
    def record(output: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # Some layers hand on more than their hidden rows, which then come first.
        outputs[index] = output[0] if isinstance(output, tuple) else output

    return record
