"""A request's sampler: its filter means what mlx-lm's does, and its draws are its own."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import mlx.core as mx
import mlx_lm.sample_utils as mlx_lm_sampling
import numpy as np
import pytest

from dflashd.protocol.messages import Sampling
from dflashd.worker.decoding.sampling import Sampler, token_id

from ..chi_square import fits
from .reference_filter import filtered

NONE = Sampling()
LOGITS = np.random.default_rng(3).normal(0, 2, (6, 40))
FILTERS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_p": 0.8},
    {"top_p": 0.02},
    {"top_p": 1.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"min_p": 0.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 0},
    {"top_k": 40},
    {"top_k": 5000},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "top_k": 4},
]


def meaning(fields: dict[str, Any]) -> Sampling:
    values: dict[str, Any] = {"temperature": 1.0} | fields
    return Sampling(**values)


def sampler(**fields: Any) -> Sampler:
    return Sampler(meaning({"seed": 0} | fields), NONE)


def logits(rows: int = 6) -> mx.array:
    return mx.array(LOGITS[:rows].astype(np.float32))


@pytest.fixture
def uncompiled() -> Generator[None]:
    """mlx-lm's compiled filters without the C++ compiler that each new value would call."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_filter_equals_the_reference(fields: dict[str, Any]) -> None:
    """Every filter, alone and together, leaves the probabilities a plain reference gives."""
    found = np.array(mx.softmax(sampler(**fields).log_weights(logits()), axis=-1))
    expected = np.stack([filtered(row, meaning(fields)) for row in LOGITS])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert ((found > 0) == (expected > 0)).all()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("fields", "theirs"),
    [
        ({"top_p": 0.8}, lambda rows: mlx_lm_sampling.apply_top_p(rows, 0.8)),
        ({"min_p": 0.1}, lambda rows: mlx_lm_sampling.apply_min_p(rows, 0.1)),
        ({"top_k": 3}, lambda rows: mlx_lm_sampling.apply_top_k(rows, 3)),
    ],
)
def test_filter_equals_mlx_lm(fields: dict[str, Any], theirs: Any) -> None:
    """A filter keeps the tokens mlx-lm keeps."""
    rows = logits()
    logprobs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
    kept = np.isfinite(np.array(theirs(logprobs)))
    assert (np.isfinite(np.array(sampler(**fields).log_weights(rows))) == kept).all()


def test_a_new_filter_calls_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value or number of rows never seen before costs milliseconds, not a C++ compilation."""
    fastest = float("inf")
    for attempt in range(3):
        fields = {"top_p": 0.5 + attempt / 777, "min_p": 0.01 + attempt / 7777, "top_k": 9}
        started = time.perf_counter()
        mx.eval(sampler(**fields).log_weights(logits(attempt + 1)))
        fastest = min(fastest, time.perf_counter() - started)
    assert fastest < 0.2


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-40, 1e-9])
def test_vanishing_temperature_is_greedy(temperature: float) -> None:
    """Temperature 0, and any that float32 cannot tell from it, is the argmax."""
    greedy = sampler(temperature=temperature)
    assert greedy.greedy
    assert greedy.choose(logits()).tolist() == LOGITS.argmax(axis=1).tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-3, 10.0])
def test_extreme_temperatures_are_numbers(temperature: float) -> None:
    """The coldest and hottest temperatures still give probabilities that sum to 1."""
    drawing = sampler(temperature=temperature, top_p=1e-9 if temperature < 1 else 1.0)
    assert not drawing.greedy
    weights = np.array(mx.softmax(drawing.log_weights(logits()), axis=-1))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-5)
    if temperature < 1:
        assert drawing.choose(logits()).tolist() == LOGITS.argmax(axis=1).tolist()


def test_low_precision_logits_are_widened() -> None:
    """bfloat16 logits are filtered and normalised in float32."""
    assert sampler(top_p=0.9).log_weights(logits().astype(mx.bfloat16)).dtype == mx.float32


def test_a_request_wins_over_defaults_field_by_field() -> None:
    """What a request leaves open comes from the model's defaults, and 0 is not 'open'."""
    defaults = Sampling(temperature=0.8, top_k=2, seed=5)
    assert Sampler(Sampling(temperature=0.0), defaults).greedy
    assert Sampler(NONE, NONE).greedy

    def kept(sampling: Sampling) -> int:
        weights = Sampler(sampling, defaults).log_weights(logits(1))
        return int(np.isfinite(np.array(weights)).sum())

    assert kept(NONE) == 2
    assert kept(Sampling(top_k=7)) == 7
    assert kept(Sampling(top_k=0)) == 40
    by_default = [Sampler(NONE, defaults).choose(logits()).tolist() for _ in range(2)]
    assert by_default[0] == by_default[1]
    assert by_default[0] == Sampler(Sampling(seed=5), defaults).choose(logits()).tolist()


def draws(drawing: Sampler, count: int = 12) -> list[int]:
    flat = logits(1)[0] / 4
    return [token_id(drawing.choose(flat)) for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_a_seed_repeats(seed: int) -> None:
    """The same seed draws the same tokens, up to the largest seed the wire carries."""
    assert draws(sampler(seed=seed)) == draws(sampler(seed=seed))
    assert draws(sampler(seed=seed)) != draws(sampler(seed=seed - 1 if seed else 1))


def test_a_seed_repeats_whatever_else_runs() -> None:
    """Neither the process-wide seed nor other requests' draws in between change a request's."""
    alone = draws(sampler(seed=1))
    mx.random.seed(99)
    one, other = sampler(seed=1), sampler(seed=2)
    mixed: list[int] = []
    for _ in range(12):
        draws(other, 2)
        mixed += draws(one, 1)
        mx.random.normal((3,))
    assert mixed == alone


def test_drawing_leaves_the_process_wide_generator_alone() -> None:
    """A request's draws do not advance mlx's own random state."""
    mx.random.seed(4)
    expected = mx.random.normal((3,)).tolist()
    mx.random.seed(4)
    draws(sampler(seed=1))
    assert mx.random.normal((3,)).tolist() == expected


def test_without_a_seed_requests_differ() -> None:
    """Requests that give no seed draw differently, even when the process-wide seed is the same."""
    seen: set[tuple[int, ...]] = set()
    for _ in range(4):
        mx.random.seed(0)
        seen.add(tuple(draws(Sampler(Sampling(temperature=1.0), NONE), 20)))
    assert len(seen) == 4


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.6, "top_p": 0.9}, {"top_k": 3}], ids=str)
def test_draws_have_the_filtered_distribution(fields: dict[str, Any]) -> None:
    """Over many keys the drawn tokens are distributed as the filter says."""
    drawing = sampler(seed=11, **fields)
    rows = mx.broadcast_to(logits(1), (500, 40))
    counts = np.zeros(40, np.int64)
    for _ in range(20):
        counts += np.bincount(np.array(drawing.choose(rows)), minlength=40)
    assert fits(counts, filtered(LOGITS[0], meaning(fields)))
    assert not fits(counts, filtered(LOGITS[1], Sampling(temperature=1.0)))
