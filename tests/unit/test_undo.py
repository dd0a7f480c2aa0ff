"""Rows of a pass taken back, for each kind of cache, and passes that cannot be."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from dflashd.worker.targets.undo import Undo, supported


class Summing(nn.Module):
    """A recurrent layer: its window is the last row, its state the sum of all rows."""

    def __call__(self, inputs: mx.array, mask: object = None, cache: Any = None) -> mx.array:
        before = 0.0 if cache[1] is None else cache[1]
        cache[0], cache[1] = inputs[:, -1:], inputs.sum(axis=1) + before
        return inputs


def rows(*values: float) -> mx.array:
    """[1, n, 1]."""
    return mx.array(values)[None, :, None]


def kv(count: int, first: int = 0) -> mx.array:
    """[1, 1, count, 1], numbered."""
    return mx.arange(first, first + count, dtype=mx.float32)[None, None, :, None]


@pytest.fixture
def layer() -> Any:
    return Summing()


def held(cache: Any) -> list[float]:
    return [array.item() for array in cache.cache if array is not None]


def test_recurrent_state_is_that_of_the_kept_rows(layer: Any) -> None:
    """What was there before the pass, and the rows that stay; of none kept, what was before."""
    for taken_back, window_and_state in ((0, [5, 15]), (1, [4, 10]), (3, [2, 3]), (4, [1, 1])):
        cache: Any = ArraysCache(2)
        undo = Undo([cache], [layer])
        layer(rows(1), None, cache)
        with undo.armed():
            layer(rows(2, 3, 4, 5), None, cache)
        undo.rollback(taken_back)
        assert held(cache) == window_and_state


def test_each_pass_is_undone_for_itself(layer: Any) -> None:
    """A pass that follows another is taken back to where the other ended."""
    cache: Any = ArraysCache(2)
    undo = Undo([cache], [layer])
    for values in ((1, 2), (4, 8)):
        with undo.armed():
            layer(rows(*values), mask=None, cache=cache)
        undo.rollback(1)
    assert held(cache) == [4, 5]


def test_layers_are_undone_by_their_own_caches() -> None:
    """Each recurrent layer has its state back, in whatever order they were called."""
    layers, caches = [Summing(), Summing()], [ArraysCache(2), ArraysCache(2)]
    undo = Undo(caches, layers)
    with undo.armed():
        for n in (1, 0):
            layers[n](rows(n + 1, 10), None, caches[n])
    undo.rollback(1)
    assert [held(cache) for cache in caches] == [[1, 1], [2, 2]]


def test_pass_that_was_not_seen_whole_is_not_undone(layer: Any) -> None:
    """A layer that was called twice or not at all has a state that nobody can restore."""
    cache: Any = ArraysCache(2)
    undo = Undo([cache], [layer])
    for calls in (0, 2):
        with undo.armed():
            for _ in range(calls):
                layer(rows(1, 2), None, cache)
        with pytest.raises(RuntimeError, match=f"recorded {calls} recurrent layers of 1"):
            undo.rollback(1)


def test_layers_and_states_have_to_fit(layer: Any) -> None:
    """A model with other states than its adapter knows is refused before anything is hooked."""
    with pytest.raises(ValueError, match="1 recurrent layers do not fit 0 states"):
        Undo([KVCache()], [layer])
    with pytest.raises(ValueError, match="0 recurrent layers do not fit 1 states"):
        Undo([ArraysCache(2)])


def test_failed_pass_leaves_nothing_kept(layer: Any) -> None:
    """What an interrupted pass recorded is let go, and its rows are nobody's any more."""
    cache: Any = ArraysCache(2)
    undo = Undo([cache], [layer])

    def interrupted() -> None:
        layer(rows(1, 2), None, cache)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), undo.armed():
        interrupted()
    assert (undo._passed, undo._before) == ([], {})
    assert type(layer) is Summing


def test_plain_and_rotating_rows_are_cut() -> None:
    """Offsets and rows are those of the tokens that stay, and the next token follows them."""
    caches: list[Any] = [KVCache(), RotatingKVCache(max_size=4)]
    undo = Undo(caches)
    for cache in caches:
        cache.update_and_fetch(kv(3), kv(3))
    with undo.armed():
        for cache in caches:
            cache.update_and_fetch(kv(3, first=3), kv(3, first=3))
    undo.rollback(2)
    plain, window = caches
    assert (plain.offset, window.offset) == (4, 4)
    assert plain.keys[0, 0, :4, 0].tolist() == [0, 1, 2, 3]
    assert window.keys[0, 0, :, 0].tolist()[-4:] == [0, 1, 2, 3]
    assert window.values.shape == window.keys.shape
    keys, values = window.update_and_fetch(kv(1, first=9), kv(1, first=9))
    assert sorted(keys[0, 0, :, 0].tolist()) == [1, 2, 3, 9]
    assert values.tolist() == keys.tolist()


def test_known_kinds_of_cache() -> None:
    """Plain, recurrent and rotating caches can be undone; those that keep a sink cannot."""
    assert supported([KVCache(), ArraysCache(2), RotatingKVCache(max_size=4)])
    assert not supported([KVCache(), RotatingKVCache(max_size=4, keep=1)])
    assert not supported([object()])
