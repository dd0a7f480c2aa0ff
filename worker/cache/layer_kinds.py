"""How each cache kind of mlx-lm is captured and restored.

Arrays are copied when they are captured, so that no snapshot pins the larger buffer it was cut
from. Restoring hands out new array objects over the stored buffers: mlx copies a shared buffer
before it writes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from .layer_state import LayerState


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


CAPTURE: dict[type, Callable[[Any, int], LayerState]] = {
    KVCache: _capture_kv,
    ConcatenateKVCache: _capture_kv,
    QuantizedKVCache: _capture_quantised,
    RotatingKVCache: _capture_rotating,
    ChunkedKVCache: _capture_chunked,
    ArraysCache: _capture_arrays,
}

CUTTABLE = frozenset({KVCache, ConcatenateKVCache, QuantizedKVCache})

RESTORE: dict[str, Callable[[LayerState, Any, int], None]] = {
    "KVCache": _restore_kv,
    "ConcatenateKVCache": _restore_kv,
    "QuantizedKVCache": _restore_quantised,
    "RotatingKVCache": _restore_rotating,
    "ChunkedKVCache": _restore_chunked,
    "ArraysCache": _restore_arrays,
}
