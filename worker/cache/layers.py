"""The state of one layer's cache, for every cache kind of mlx-lm: capture and restore.

A kind that is not listed is refused by name: its model is then not cached. Arrays are copied when
they are captured, so that no snapshot pins the larger buffer it was cut from. Restoring hands out
new array objects over the stored buffers: mlx copies a shared buffer before it writes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)


class UnknownCacheKind(TypeError):
    """A cache kind this module does not know; the message names it. Such a model is not cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """One layer's cache. ``rows`` is the sequence length it stands for; None: it does not know.

    ``trimmable``: the state of any shorter prefix can be had from it.
    """

    kind: str
    numbers: tuple[int, ...]
    arrays: tuple[mx.array | None, ...]
    trimmable: bool
    rows: int | None
    parts: tuple[LayerState, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        own = sum(array.nbytes for array in self.arrays if array is not None)
        return own + sum(part.nbytes for part in self.parts)

    def all_arrays(self) -> list[mx.array]:
        """Its arrays and those of its parts."""
        own = [array for array in self.arrays if array is not None]
        return own + [array for part in self.parts for array in part.all_arrays()]


def unknown_kind(caches: list[Any]) -> str | None:
    """The name of the first kind that cannot be captured, or None."""
    for cache in caches:
        if type(cache) is CacheList:
            inner = unknown_kind(list(cache.caches))
            if inner is not None:
                return inner
        elif type(cache) not in _CAPTURE:
            return type(cache).__name__
    return None


def cuttable(caches: list[Any]) -> bool:
    """Whether every state these caches can ever be in can be cut to any prefix of it."""
    return all(
        cuttable(list(cache.caches)) if type(cache) is CacheList else type(cache) in _CUTTABLE
        for cache in caches
    )


def capture_all(caches: list[Any], held: int, rows: int) -> tuple[LayerState, ...]:
    """Copies of the first ``rows`` of ``held`` rows of all layers; raises as :func:`capture`."""
    states = tuple(capture(cache, rows) for cache in caches)
    if rows != held and not all(state.trimmable for state in states):
        raise ValueError(f"a state behind {held} tokens cannot be cut to {rows}")
    return states


def restore_all(states: tuple[LayerState, ...], caches: list[Any], rows: int) -> None:
    """Put ``rows`` rows into fresh caches; raises as :func:`restore`."""
    for state, cache in zip(states, caches, strict=True):
        restore(state, cache, rows)


def capture(cache: Any, rows: int) -> LayerState:
    """A detached copy (lazy) of the first ``rows`` rows.

    Raises:
        UnknownCacheKind: see there.
        ValueError: the cache holds another number of rows and cannot be cut.
    """
    if type(cache) is CacheList:
        parts = tuple(capture(part, rows) for part in cache.caches)
        return LayerState(
            kind="CacheList",
            numbers=(),
            arrays=(),
            trimmable=all(part.trimmable for part in parts),
            rows=max((part.rows for part in parts if part.rows is not None), default=None),
            parts=parts,
        )
    handler = _CAPTURE.get(type(cache))
    if handler is None:
        raise UnknownCacheKind(f"{type(cache).__name__} is not a cache kind that can be stored")
    return handler(cache, rows)


def restore(state: LayerState, cache: Any, rows: int) -> None:
    """Put the first ``rows`` rows of ``state`` into ``cache``, a fresh one of the same layer.

    Raises:
        ValueError: the cache is of another kind or setting, or the state cannot be cut to ``rows``.
    """
    if type(cache).__name__ != state.kind:
        raise ValueError(f"a {state.kind} state does not fit a {type(cache).__name__}")
    if (
        state.rows is not None
        and rows != state.rows
        and not (state.trimmable and rows < state.rows)
    ):
        raise ValueError(f"{state.kind}: a state of {state.rows} rows cannot serve {rows}")
    if state.kind == "CacheList":
        for part, inner in zip(state.parts, cache.caches, strict=True):
            restore(part, inner, rows)
        return
    _RESTORE[state.kind](state, cache, rows)


def detached(array: mx.array) -> mx.array:
    """A copy in a buffer of its own, bit for bit, lazily.

    ``mx.contiguous`` keeps the whole buffer of a slice that happens to be contiguous; a select
    always writes a new one.
    """
    return mx.where(mx.array(True), array, array)  # noqa: FBT003 - a value, not an option


def _lent(array: mx.array | None) -> mx.array | None:
    """Another array object over the same buffer: assigning into an array changes the object."""
    return None if array is None else mx.stop_gradient(array)


def _cut(array: mx.array | None, rows: int) -> mx.array | None:
    """The first ``rows`` rows of [..., L, D], as an object of the borrower's own."""
    if array is None or array.shape[-2] == rows:
        return _lent(array)
    return array[..., :rows, :]


def _copy(array: mx.array | None, rows: int) -> mx.array | None:
    return None if array is None else detached(array[..., :rows, :])


def _enough(cache: Any, rows: int) -> None:
    if cache.offset < rows:
        raise ValueError(f"{type(cache).__name__} holds {cache.offset} rows, not {rows}")


# --- plain KV --------------------------------------------------------------------------------


def _capture_kv(cache: Any, rows: int) -> LayerState:
    _enough(cache, rows)
    return LayerState(
        kind=type(cache).__name__,
        numbers=(),
        arrays=(_copy(cache.keys, rows), _copy(cache.values, rows)),
        trimmable=True,
        rows=rows,
    )


def _restore_kv(state: LayerState, cache: Any, rows: int) -> None:
    cache.keys, cache.values = (_cut(array, rows) for array in state.arrays)
    cache.offset = rows


# --- quantised KV: (packed, scales, biases) for keys and for values --------------------------


def _capture_quantised(cache: Any, rows: int) -> LayerState:
    _enough(cache, rows)
    arrays = () if cache.keys is None else (*cache.keys, *cache.values)
    return LayerState(
        kind=type(cache).__name__,
        numbers=(cache.group_size, cache.bits),
        arrays=tuple(_copy(array, rows) for array in arrays),
        trimmable=True,
        rows=rows,
    )


def _restore_quantised(state: LayerState, cache: Any, rows: int) -> None:
    _same(state.numbers, (cache.group_size, cache.bits), state.kind)
    if state.arrays:
        half = len(state.arrays) // 2
        cut = [_cut(array, rows) for array in state.arrays]
        # Lists: the cache assigns into them.
        cache.keys, cache.values = cut[:half], cut[half:]
    cache.offset = rows


# --- rotating KV: a ring once it has wrapped -------------------------------------------------


def _capture_rotating(cache: Any, rows: int) -> LayerState:
    wrapped = cache.offset >= cache.max_size or cache._idx != cache.offset  # noqa: SLF001
    if wrapped and cache.offset != rows:
        raise ValueError(f"a wrapped RotatingKVCache of {cache.offset} rows cannot give {rows}")
    _enough(cache, rows)
    if wrapped:
        # As it is: a state in another order would be the same to the model, but not bit for bit.
        length = 0 if cache.keys is None else cache.keys.shape[2]
        index = cache._idx  # noqa: SLF001
    else:
        length = index = rows
    return LayerState(
        kind="RotatingKVCache",
        numbers=(cache.keep, cache.max_size, index),
        arrays=(_copy(cache.keys, length), _copy(cache.values, length)),
        trimmable=not wrapped,
        rows=rows,
    )


def _restore_rotating(state: LayerState, cache: Any, rows: int) -> None:
    keep, max_size, index = state.numbers
    _same((keep, max_size), (cache.keep, cache.max_size), state.kind)
    if state.trimmable:
        cache.keys, cache.values = (_cut(array, rows) for array in state.arrays)
        index = rows
    else:
        cache.keys, cache.values = (_lent(array) for array in state.arrays)
    cache.offset, cache._idx = rows, index  # noqa: SLF001


# --- chunked KV: forgets its front -----------------------------------------------------------


def _capture_chunked(cache: Any, rows: int) -> LayerState:
    _enough(cache, rows)
    start = cache.start_position
    if start and cache.offset != rows:
        raise ValueError(f"a ChunkedKVCache that forgot its front cannot give {rows} rows")
    return LayerState(
        kind="ChunkedKVCache",
        numbers=(cache.chunk_size, start),
        arrays=(_copy(cache.keys, rows - start), _copy(cache.values, rows - start)),
        trimmable=start == 0,
        rows=rows,
    )


def _restore_chunked(state: LayerState, cache: Any, rows: int) -> None:
    chunk_size, start = state.numbers
    _same((chunk_size,), (cache.chunk_size,), state.kind)
    cache.keys, cache.values = (_cut(array, rows - start) for array in state.arrays)
    cache.offset, cache.start_position = rows, start


# --- recurrent states: one place, any number of arrays ---------------------------------------


def _capture_arrays(cache: Any, rows: int) -> LayerState:  # noqa: ARG001 - it knows no rows
    if cache.left_padding is not None or cache.lengths is not None:
        raise ValueError("an ArraysCache of a batch is not the state of one request")
    arrays = cast("list[mx.array | None]", cache.cache)
    return LayerState(
        kind="ArraysCache",
        numbers=(),
        arrays=tuple(None if array is None else detached(array) for array in arrays),
        trimmable=False,
        rows=None,
    )


def _restore_arrays(state: LayerState, cache: Any, rows: int) -> None:  # noqa: ARG001 - as above
    _same((len(state.arrays),), (len(cache.cache),), state.kind)
    cache.cache = [_lent(array) for array in state.arrays]


def _same(stored: tuple[int, ...], present: tuple[int, ...], kind: str) -> None:
    if stored != present:
        raise ValueError(f"{kind}: a state of {stored} does not fit a cache of {present}")


_CAPTURE: dict[type, Callable[[Any, int], LayerState]] = {
    KVCache: _capture_kv,
    ConcatenateKVCache: _capture_kv,
    QuantizedKVCache: _capture_quantised,
    RotatingKVCache: _capture_rotating,
    ChunkedKVCache: _capture_chunked,
    ArraysCache: _capture_arrays,
}

_CUTTABLE = frozenset({KVCache, ConcatenateKVCache, QuantizedKVCache})

_RESTORE: dict[str, Callable[[LayerState, Any, int], None]] = {
    "KVCache": _restore_kv,
    "ConcatenateKVCache": _restore_kv,
    "QuantizedKVCache": _restore_quantised,
    "RotatingKVCache": _restore_rotating,
    "ChunkedKVCache": _restore_chunked,
    "ArraysCache": _restore_arrays,
}
