"""Take back rows of a verify pass from a request's caches, whatever kinds they are.

- Plain KV: ``trim``.
- Rotating KV (sliding window): cut the tail of the buffer, which a pass of several rows orders by
  time.
- Recurrent state: put back what was there before the pass, and run the layer over the kept rows.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from ..cache.layer_kinds import detached
from ..hooks.instances import InstanceHooks, Observer

Caches = list[Any]
"""One mlx-lm cache per layer that has its own."""


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """One recurrent layer's part in a pass: what went in, and the states before."""

    layer: nn.Module
    inputs: mx.array
    cache: ArraysCache
    before: list[mx.array | None]


class Undo:
    """Undoes rows of the last armed pass over ``caches``; belongs to one request.

    ``recurrent`` are the layers that keep their state in an ArraysCache and are called as
    ``layer(inputs, mask, cache)``.
    """

    def __init__(self, caches: Caches, recurrent: Sequence[nn.Module] = ()) -> None:
        self._caches = caches
        self._states = [cache for cache in caches if type(cache) is ArraysCache]
        if len(self._states) != len(recurrent):
            raise ValueError(
                f"{len(recurrent)} recurrent layers do not fit {len(self._states)} states"
            )
        self._passed: list[_Recurrence] = []
        self._before: dict[int, list[mx.array | None]] = {}
        self._hooks = InstanceHooks([(layer, self._recorder(layer)) for layer in recurrent])

    @contextmanager
    def armed(self) -> Generator[None]:
        """Keep what is needed to undo the pass that runs inside."""
        self._passed.clear()
        # The layers put new arrays in place of these and never write into them.
        self._before = {id(cache): list(cache.cache) for cache in self._states}
        try:
            with self._hooks.armed():
                yield
        except BaseException:
            self._forget()
            raise

    def rollback(self, rows: int) -> None:
        """Forget the newest ``rows`` rows of the armed pass; once per pass.

        Raises:
            RuntimeError: a recurrent layer was not called in the pass, or called twice.
        """
        if rows:
            self._rerun(rows)
            for cache in self._caches:
                if type(cache) is KVCache:
                    cache.trim(rows)
                elif type(cache) is RotatingKVCache:
                    _cut(cache, rows)
        self._forget()

    def _rerun(self, rows: int) -> None:
        called = [id(passed.cache) for passed in self._passed]
        if sorted(called) != sorted(self._before):
            raise RuntimeError(
                f"the pass recorded {len(self._passed)} recurrent layers of {len(self._states)}"
            )
        for passed in self._passed:
            passed.cache.cache = passed.before
            kept = passed.inputs.shape[1] - rows
            if kept:
                # Only the states are ever evaluated: the layer's output stays a promise.
                passed.layer(passed.inputs[:, :kept], None, passed.cache)
                detach_windows([passed.cache])

    def _recorder(self, layer: nn.Module) -> Observer:
        def record(_output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            cache = kwargs.get("cache", args[-1])
            self._passed.append(_Recurrence(layer, args[0], cache, self._before[id(cache)]))

        return record

    def _forget(self) -> None:
        self._passed.clear()
        self._before.clear()


def supported(caches: Caches) -> bool:
    """Whether :class:`Undo` knows every kind among ``caches``."""
    return all(
        type(cache) in (KVCache, ArraysCache)
        or (type(cache) is RotatingKVCache and cache.keep == 0)
        for cache in caches
    )


def detach_windows(caches: Caches) -> None:
    """Convolution windows as copies (lazy): they were sliced from a whole pass and would pin it.

    A recurrent layer's first array is its window; a state behind it has a buffer of its own.
    """
    for cache in caches:
        if type(cache) is ArraysCache:
            cache[0] = detached(cache[0])


def _cut(cache: Any, rows: int) -> None:
    """Drop the newest ``rows`` rows of a pass that had more rows than that.

    Such a pass orders the buffer by time and keeps ``max_size - 1`` rows before its own, so what
    is left reaches back a whole window. Moving offset and index alone would not do: a buffer
    longer than the window loses its *oldest* rows at the next step, whatever the index says.
    """
    length = cache.keys.shape[2] - rows
    cache.keys = cache.keys[..., :length, :]
    cache.values = cache.values[..., :length, :]
    cache.offset -= rows
    cache._idx = length  # noqa: SLF001 - part of its state, without a public name
