"""Every cache kind of mlx-lm is captured and restored so that nothing shows in the last bit."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from dflashd.worker.cache import snapshot_file
from dflashd.worker.cache.layers import (
    UnknownCacheKind,
    capture,
    capture_all,
    cuttable,
    restore,
    restore_all,
    unknown_kind,
)
from dflashd.worker.cache.snapshot import Snapshot

from ..tiny import VOCAB_TOKENS

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_TOKENS,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
    "gpt_oss": {
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "qwen3_5": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
    },
}
TOKENS = [(37 * n) % 290 + 5 for n in range(64)]


def model_of(family: str) -> Any:
    """A tiny random model of the family."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = COMMON | {"model_type": family} | FAMILIES[family]
    if family == "qwen3_5":
        config = {"model_type": family, "text_config": config}
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.eval(model.parameters())
    return model


def run(model: Any, tokens: list[int], caches: list[Any]) -> mx.array:
    logits = model(mx.array([tokens]), cache=caches)
    mx.eval(logits)
    return logits


def through_file(snapshot: Snapshot, folder: Path) -> Snapshot:
    """Written to a file and read again."""
    snapshot.evaluate()
    path = folder / f"{snapshot.key}.safetensors"
    with path.open("wb") as file:
        snapshot_file.write(file, snapshot_file.payload(snapshot, "s"))
    return snapshot_file.read(path, snapshot.key, "s")


@pytest.mark.parametrize("prompt", [5, 8, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_restored_state_continues_bit_for_bit(family: str, prompt: int, tmp_path: Path) -> None:
    """From memory and from disk, a restored state gives the logits the live one gives.

    Passes of several rows and of one; windows not full, just full and long wrapped; and what a
    borrower appends never reaches the stored copy.
    """
    model = model_of(family)
    live = make_prompt_cache(model)
    run(model, TOKENS[: prompt - 2], live)
    run(model, TOKENS[prompt - 2 : prompt], live)
    for token in TOKENS[prompt : prompt + 3]:
        run(model, [token], live)
    rows = prompt + 3
    stored = Snapshot(
        tokens=np.array(TOKENS[:rows], np.int32),
        target=capture_all(live, rows, rows),
        draft=None,
        logits={},
        aligned_tokens=0,
    )
    stored.evaluate()
    passes = [[t] for t in TOKENS[30:36]] + [TOKENS[36:42], TOKENS[42:60]]
    expected = [run(model, tokens, live) for tokens in passes]
    for source in (stored, stored, through_file(stored, tmp_path)):
        caches = make_prompt_cache(model)
        restore_all(source.target, caches, rows)
        for tokens, logits in zip(passes, expected, strict=True):
            assert mx.array_equal(run(model, tokens, caches), logits)
    assert cuttable(live) == (family == "llama")


@pytest.mark.parametrize("rows", [3, 7])
@pytest.mark.parametrize(
    "make",
    [
        KVCache,
        ConcatenateKVCache,
        lambda: QuantizedKVCache(group_size=32, bits=4),
        lambda: RotatingKVCache(max_size=64),
        lambda: ChunkedKVCache(64),
        lambda: CacheList(KVCache(), KVCache()),
    ],
    ids=["plain", "concatenate", "quantised", "rotating", "chunked", "list"],
)
def test_trimmable_kinds_serve_every_prefix(make: Any, rows: int) -> None:
    """A state of ten rows, cut to fewer, is the state after those rows."""

    def parts(cache: Any) -> list[Any]:
        return list(cache.caches) if isinstance(cache, CacheList) else [cache]

    def feed(cache: Any, begin: int, end: int) -> list[Any]:
        return [
            p.update_and_fetch(keys[..., begin:end, :], values[..., begin:end, :])
            for p in parts(cache)
        ]

    keys = mx.random.normal((1, 2, 12, 32), key=mx.random.key(1))
    values = mx.random.normal((1, 2, 12, 32), key=mx.random.key(2))
    live, truth = make(), make()
    feed(live, 0, 10)
    feed(truth, 0, rows)
    state = capture(live, 10)
    assert state.trimmable
    cut = make()
    restore(state, cut, rows)
    got, expected = feed(cut, rows, 12), feed(truth, rows, 12)
    flat = [mx.array_equal(a, b) for a, b in zip(_flat(got), _flat(expected), strict=True)]
    assert flat
    assert all(flat)
    assert [part.offset for part in parts(cut)] == [12] * len(parts(cut))


def _flat(value: Any) -> list[mx.array]:
    if isinstance(value, mx.array):
        return [value]
    return [array for inner in value for array in _flat(inner)]


def test_wrapped_and_recurrent_state_cannot_be_cut() -> None:
    """State that lost its past is refused for any other length: nothing unsound is stored."""
    rows = mx.random.normal((1, 1, 6, 4))
    rotating = RotatingKVCache(max_size=4)
    rotating.update_and_fetch(rows, rows)
    recurrent = ArraysCache(size=2)
    recurrent[0] = rows
    with pytest.raises(ValueError, match="wrapped"):
        capture(rotating, 5)
    with pytest.raises(ValueError, match="cannot be cut"):
        capture_all([recurrent], 6, 5)
    state = capture(rotating, 6)
    assert not state.trimmable
    with pytest.raises(ValueError, match="cannot serve"):
        restore(state, RotatingKVCache(max_size=4), 5)
    with pytest.raises(ValueError, match="does not fit"):
        restore(state, RotatingKVCache(max_size=8), 6)
    with pytest.raises(ValueError, match="does not fit"):
        restore(state, KVCache(), 6)


def test_unknown_kinds_are_refused_by_name() -> None:
    """A cache kind nobody described makes its model uncached, and the reason names it."""

    class Exotic(KVCache):
        pass

    assert unknown_kind([KVCache(), CacheList(KVCache(), Exotic())]) == "Exotic"
    assert unknown_kind([KVCache(), ArraysCache(size=1)]) is None
    with pytest.raises(UnknownCacheKind, match="Exotic"):
        capture(Exotic(), 0)


def test_snapshots_pin_no_larger_buffer() -> None:
    """A copy of a few rows keeps those few rows alive, not the buffer they were cut from."""
    before = mx.get_active_memory()
    cache = KVCache()
    keys = mx.zeros((1, 1, 5000, 64)) + 1
    cache.update_and_fetch(keys, keys)
    mx.eval(cache.keys, cache.values)
    state = capture(cache, 10)
    mx.eval(state.all_arrays())
    del cache, keys
    assert mx.get_active_memory() - before <= state.nbytes + 4096
    assert state.nbytes == 2 * 10 * 64 * 4
