"""Feature taps touch the chosen instances only, and only while a pass runs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflashd.worker.decoding.features import FeatureTap


class Layer(nn.Module):
    """Multiplies by its number and adds one; knows how often it was called, and can fail."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.calls = 0
        self.fails = False
        self.weight = mx.array(float(number))

    def __call__(self, x: mx.array, mask: object = None, *, cache: object = None) -> mx.array:
        self.calls += 1
        if self.fails:
            raise RuntimeError("the device failed")
        return x * self.weight + 1.0


def stack(count: int = 6) -> list[Layer]:
    return [Layer(number) for number in range(count)]


def forward(layers: list[Layer], x: mx.array) -> list[mx.array]:
    """The output of every layer; called as models do it, with positional and keyword arguments."""
    outputs: list[mx.array] = []
    for layer in layers:
        x = layer(x, "mask", cache=None)
        outputs.append(x)
    return outputs


X = mx.array(np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32))


@pytest.mark.parametrize("ids", [(1, 4), (4, 1), (2, 2, 0), (5,), (0, 1, 2, 3, 4, 5), (3, 0, 3)])
def test_features_are_layer_outputs_in_list_order(ids: tuple[int, ...]) -> None:
    """Features are the outputs of the listed layers, in the list's order, repeats included."""
    layers = stack()
    tap = FeatureTap(layers, ids)
    with tap.armed():
        outputs = forward(layers, X)
    expected = mx.concatenate([outputs[i] for i in ids], axis=-1)
    np.testing.assert_array_equal(np.array(tap.features()), np.array(expected))


def test_outputs_and_calls_are_unchanged() -> None:
    """A tapped pass computes what an untapped one does, and calls each layer once."""
    layers, plain = stack(), stack()
    with FeatureTap(layers, (1, 1, 3)).armed():
        tapped = forward(layers, X)
    for ours, theirs in zip(tapped, forward(plain, X), strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    assert [layer.calls for layer in layers] == [1] * 6


def test_only_the_listed_instances_are_hooked() -> None:
    """While armed, listed instances have a subclass of their own; before and after nobody has."""
    layers = stack()
    call = Layer.__call__
    tap = FeatureTap(layers, (1, 4))
    assert {type(layer) for layer in layers} == {Layer}
    with tap.armed():
        for number, layer in enumerate(layers):
            assert (type(layer) is not Layer) == (number in (1, 4))
            assert isinstance(layer, Layer)
        assert Layer.__call__ is call
    assert {type(layer) for layer in layers} == {Layer}
    assert Layer.__call__ is call


def test_another_model_of_the_class_is_not_hooked() -> None:
    """A second model runs un-hooked while the first is armed, and leaves no trace in it."""
    first, second = stack(), stack()
    tap = FeatureTap(first, (1, 4))
    with tap.armed():
        outputs = forward(first, X)
        forward(second, X * 100)
        assert {type(layer) for layer in second} == {Layer}
    expected = mx.concatenate([outputs[1], outputs[4]], axis=-1)
    np.testing.assert_array_equal(np.array(tap.features()), np.array(expected))


def test_taps_of_two_requests_alternate() -> None:
    """Two taps on the same layers, armed in turn, keep their features apart."""
    layers = stack()
    ours, theirs = FeatureTap(layers, (1, 4)), FeatureTap(layers, (4, 2))
    with ours.armed():
        one = forward(layers, X)
    with theirs.armed():
        two = forward(layers, X * 2)
    np.testing.assert_array_equal(
        np.array(ours.features()), np.array(mx.concatenate([one[1], one[4]], axis=-1))
    )
    np.testing.assert_array_equal(
        np.array(theirs.features()), np.array(mx.concatenate([two[4], two[2]], axis=-1))
    )


@pytest.mark.parametrize("failing", [0, 1, 2, 4, 5])
def test_a_failure_leaves_nothing(failing: int) -> None:
    """A pass that fails in any layer leaves every instance as it was, and no features."""
    layers = stack()
    tap = FeatureTap(layers, (1, 4))
    layers[failing].fails = True
    with pytest.raises(RuntimeError, match="the device failed"), tap.armed():
        forward(layers, X)
    assert {type(layer) for layer in layers} == {Layer}
    with pytest.raises(KeyError):
        tap.features()
    layers[failing].fails = False
    with tap.armed():
        outputs = forward(layers, X)
    expected = mx.concatenate([outputs[1], outputs[4]], axis=-1)
    np.testing.assert_array_equal(np.array(tap.features()), np.array(expected))


def test_features_are_handed_out_once() -> None:
    """A tap keeps no array once its features were read."""
    layers = stack()
    tap = FeatureTap(layers, (1, 4))
    with tap.armed():
        forward(layers, X)
    tap.features()
    with pytest.raises(KeyError):
        tap.features()


def test_unlisted_parameters_stay_reachable() -> None:
    """A hooked instance keeps its parameters: the tree of the model does not change."""
    layers = stack()
    with FeatureTap(layers, (1,)).armed():
        parameters: Any = layers[1].parameters()
        assert list(parameters) == ["weight"]


def test_a_tap_keeps_no_model_alive() -> None:
    """Requests come and go: no layer outlives its model, and its class is made once."""
    layers = stack()
    gone = weakref.ref(layers[1])
    for _ in range(20):
        with FeatureTap(layers, (1, 4)).armed():
            forward(layers, X)
    del layers
    gc.collect()
    assert gone() is None
    assert len(Layer.__subclasses__()) == 1
