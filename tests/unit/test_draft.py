"""The draft network computes what its description says, and loads only what belongs to it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray
from safetensors.numpy import (  # pyright: ignore[reportMissingTypeStubs]
    load_file,  # pyright: ignore[reportUnknownVariableType]
    save_file,  # pyright: ignore[reportUnknownVariableType]
)

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker.checkpoints.draft_config import DraftConfig, draft_config
from dflashd.worker.checkpoints.fields import read_config
from dflashd.worker.decoding.draft import DraftModel
from dflashd.worker.decoding.draft_weights import load_draft

from ..tiny import make_draft
from .reference_draft import Array, Weights, draft_rows, random_weights

FULL = DraftConfig(
    hidden_size=24,
    intermediate_size=40,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    rope_scaling=None,
    max_position_embeddings=4096,
    vocab_size=50,
    block_tokens=5,
    num_target_layers=6,
    target_layer_ids=(1, 4),
    mask_token_id=3,
    layer_types=("full_attention", "full_attention"),
    sliding_window=None,
    is_causal=None,
    output_multiplier=1.0,
    final_logit_softcapping=0.0,
    input_embedding_scale=1.0,
)
SLIDING = dataclasses.replace(FULL, layer_types=("sliding_attention",) * 2, sliding_window=6)
MIXED = dataclasses.replace(
    FULL, layer_types=("sliding_attention", "full_attention"), sliding_window=4
)
VERSION_2 = dataclasses.replace(
    SLIDING,
    is_causal=False,
    conv_kernel_size=2,
    conv_group_size=4,
    selector_rank=6,
    selector_top_k=4,
)
CONFIGS = {
    "version 2": VERSION_2,
    "three taps": dataclasses.replace(VERSION_2, conv_kernel_size=3, conv_group_size=24),
    "full": FULL,
    "sliding": SLIDING,
    "mixed": MIXED,
    "sliding, not causal": dataclasses.replace(SLIDING, is_causal=False),
    "window smaller than block": dataclasses.replace(SLIDING, sliding_window=2),
    "window of one": dataclasses.replace(SLIDING, sliding_window=1),
    "window larger than all": dataclasses.replace(SLIDING, sliding_window=500),
    "one key head": dataclasses.replace(FULL, num_key_value_heads=1),
    "scaled rotation": dataclasses.replace(
        FULL, rope_scaling={"rope_type": "linear", "factor": 4.0}, rope_theta=5e5
    ),
}


def network(config: DraftConfig, seed: int = 0) -> tuple[DraftModel, Weights]:
    weights = random_weights(config, seed)
    model = DraftModel(config)
    model.load_weights([(name, as_mlx(array)) for name, array in weights.items()])
    return model, weights


def as_mlx(array: Array) -> mx.array:
    return mx.array(array.astype(np.float32))


def rows_and_features(config: DraftConfig, context: int, block: int) -> tuple[Array, Array]:
    random = np.random.default_rng(context * 100 + block)
    return (
        random.normal(size=(block, config.hidden_size)),
        random.normal(size=(context, config.feature_size)),
    )


def run(
    model: DraftModel, block: Array, features: Array | None, caches: list[KVCache]
) -> NDArray[np.float32]:
    given = None if features is None else as_mlx(features)[None]
    return np.array(model(as_mlx(block)[None], given, caches)[0])


def same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("context", "block"), [(1, 5), (3, 2), (11, 5), (40, 16)])
def test_equals_the_reference(name: str, context: int, block: int) -> None:
    """Hidden rows equal an independent float64 computation, for every kind of mask."""
    config = CONFIGS[name]
    model, weights = network(config)
    rows, features = rows_and_features(config, context, block)
    found = run(model, rows, features, model.make_caches())
    same(found, draft_rows(config, weights, rows, features))


@pytest.mark.parametrize("name", CONFIGS)
def test_context_in_pieces(name: str) -> None:
    """Prefill chunks and pending features give the rows that all features at once give."""
    config = CONFIGS[name]
    model, weights = network(config)
    rows, features = rows_and_features(config, 23, 5)
    caches = model.make_caches()
    model.extend_context(as_mlx(features[:9])[None], caches)
    model.extend_context(as_mlx(features[9:10])[None], caches)
    model.extend_context(as_mlx(features[10:17])[None], caches)
    found = run(model, rows, features[17:], caches)
    same(found, draft_rows(config, weights, rows, features))


def test_cycle_after_cycle() -> None:
    """Through many cycles, also where the caches grow, each block sees all context and no block."""
    for config in (FULL, MIXED):
        model, weights = network(config)
        random = np.random.default_rng(5)
        _, features = rows_and_features(config, 300, 1)
        caches = model.make_caches()
        model.extend_context(as_mlx(features[:246])[None], caches)
        done = 246
        while done < 290:
            step, length = int(random.integers(1, 6)), int(random.integers(2, 12))
            rows, _ = rows_and_features(config, done, length)
            found = run(model, rows, features[done : done + step], caches)
            done += step
            same(found, draft_rows(config, weights, rows, features[:done]))
            assert [cache.offset for cache in caches] == [done] * len(caches)


def test_a_block_without_new_features() -> None:
    """A block right after the prefill uses the caches alone, and can be repeated."""
    model, weights = network(FULL)
    rows, features = rows_and_features(FULL, 7, 5)
    caches = model.make_caches()
    model.extend_context(as_mlx(features)[None], caches)
    for _ in range(2):
        same(run(model, rows, None, caches), draft_rows(FULL, weights, rows, features))
        assert [cache.offset for cache in caches] == [7, 7]


@pytest.mark.parametrize("causal", [True, False])
def test_window_edge(causal: bool) -> None:
    """A sliding row sees a context key if and only if it is less than a window behind."""
    config = dataclasses.replace(
        SLIDING, layer_types=("sliding_attention",), is_causal=None if causal else False
    )
    model, _ = network(config)
    context, window = 12, 6
    rows, features = rows_and_features(config, context, 5)
    before = run(model, rows, features, model.make_caches())
    for key in range(context):
        other = features.copy()
        other[key] += 1.0
        changed = np.abs(run(model, rows, other, model.make_caches()) - before).max(axis=1) > 1e-4
        expected = [context + row - key < window for row in range(5)]
        assert changed.tolist() == expected, f"context key {key}"


@pytest.mark.parametrize(
    ("config", "first_sees_last"),
    [(FULL, True), (SLIDING, False), (dataclasses.replace(SLIDING, is_causal=False), True)],
)
def test_direction_inside_the_block(config: DraftConfig, first_sees_last: bool) -> None:
    """The block is bidirectional in full layers, causal in sliding ones unless said otherwise."""
    config = dataclasses.replace(config, layer_types=config.layer_types[:1])
    model, _ = network(config)
    rows, features = rows_and_features(config, 4, 5)
    before = run(model, rows, features, model.make_caches())
    rows[-1] += 1.0
    after = run(model, rows, features, model.make_caches())
    assert (np.abs(after[0] - before[0]).max() > 1e-4) == first_sees_last


def test_scaled_logits() -> None:
    """Logits are multiplied first and soft-capped then; both are off by default."""
    logits = mx.array([-50.0, -1.0, 0.0, 2.0, 80.0])
    plain, _ = network(FULL)
    assert plain.scaled_logits(logits).tolist() == logits.tolist()
    config = dataclasses.replace(FULL, output_multiplier=0.5, final_logit_softcapping=20.0)
    capped, _ = network(config)
    expected = 20 * np.tanh(np.array([-50.0, -1.0, 0.0, 2.0, 80.0]) * 0.5 / 20)
    np.testing.assert_allclose(np.array(capped.scaled_logits(logits)), expected, rtol=1e-5)


def tensors_of(folder: Path) -> dict[str, NDArray[np.float32]]:
    return load_file(folder / "model.safetensors")


def load(folder: Path, dtype: mx.Dtype | None = None) -> DraftModel:
    return load_draft(folder, draft_config(read_config(folder), "here"), dtype)


def load_error(folder: Path) -> str:
    with pytest.raises(DflashError) as caught:
        load(folder)
    assert caught.value.code == ErrorCode.load_failed
    assert str(folder) in caught.value.message
    return caught.value.message


def test_loads_its_tensors(tmp_path: Path) -> None:
    """A whole checkpoint loads with every value in its place, in one file or in several."""
    folder = make_draft(tmp_path)
    arrays = tensors_of(folder)
    names = sorted(arrays)
    (folder / "model.safetensors").unlink()
    save_file({name: arrays[name] for name in names[:7]}, folder / "model-1.safetensors")
    save_file({name: arrays[name] for name in names[7:]}, folder / "model-2.safetensors")
    model = load(folder)
    np.testing.assert_array_equal(np.array(model.fc.weight), arrays["fc.weight"])
    query = np.array(model.layers[1].self_attn.q_proj.weight)
    np.testing.assert_array_equal(query, arrays["layers.1.self_attn.q_proj.weight"])
    assert load(folder, mx.bfloat16).fc.weight.dtype == mx.bfloat16


def version_2_folder(folder: Path) -> tuple[Path, DraftConfig, Weights]:
    """A folder with the tensors of ``VERSION_2``."""
    weights = random_weights(VERSION_2, 3)
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    save_file(arrays, folder / "model.safetensors")
    return folder, VERSION_2, weights


def test_loads_version_2_and_its_other_names(tmp_path: Path) -> None:
    """Convolutions, selector and the names of assistants load; a tensor named twice is refused."""
    folder, config, weights = version_2_folder(tmp_path)
    rows, features = rows_and_features(config, 9, 5)
    expected = draft_rows(config, weights, rows, features)
    model = load_draft(folder, config, None)
    same(run(model, rows, features, model.make_caches()), expected)
    arrays = tensors_of(folder)
    renamed = dict(arrays)
    renamed["encoder.fc.weight"] = renamed.pop("fc.weight")
    renamed["encoder.output_norm_enc.weight"] = renamed.pop("hidden_norm.weight")
    for side in ("predecessor", "successor"):
        bare = f"candidate_selector.{side}_codebook"
        renamed[f"{bare}.weight"] = renamed.pop(bare)
    save_file(renamed, folder / "model.safetensors")
    model = load_draft(folder, config, None)
    same(run(model, rows, features, model.make_caches()), expected)
    for twice in ("fc.weight", "candidate_selector.successor_codebook"):
        save_file(renamed | {twice: arrays[twice]}, folder / "model.safetensors")
        with pytest.raises(DflashError, match=f"{twice} is there under two names"):
            load_draft(folder, config, None)


@pytest.mark.parametrize("dtype", [None, mx.float32])
def test_loads_a_quantised_draft(tmp_path: Path, dtype: mx.Dtype | None) -> None:
    """Packed weights stay packed, or become dense where that computes faster: the same rows."""
    config = dataclasses.replace(FULL, hidden_size=32, head_dim=32, intermediate_size=64)
    model, _ = network(config)
    rows, features = rows_and_features(config, 9, 5)
    nn.quantize(model, 32, 8, class_predicate=_quantisable)
    mx.save_safetensors(
        str(tmp_path / "model.safetensors"),
        dict(tree_flatten(model.parameters())),  # pyright: ignore[reportArgumentType]
    )
    expected = run(model, rows, features, model.make_caches())
    quantised = dataclasses.replace(
        config,
        quantization={"group_size": 64, "bits": 4, "fc": {"group_size": 32, "bits": 8}}
        | {
            f"layers.{layer}.{name}": {"group_size": 32, "bits": 8}
            for layer in range(2)
            for name in (
                *(f"self_attn.{part}_proj" for part in "qkvo"),
                "mlp.gate_proj",
                "mlp.up_proj",
                "mlp.down_proj",
            )
        },
    )
    loaded = load_draft(tmp_path, quantised, dtype)
    same(run(loaded, rows, features, loaded.make_caches()), expected)
    assert type(loaded.fc) is (nn.QuantizedLinear if dtype is None else nn.Linear)
    assert type(loaded.layers[1].mlp.up_proj) is nn.Linear
    with pytest.raises(DflashError, match=r"fc\.biases is not part of a DFlash draft"):
        load_draft(tmp_path, config, dtype)


def _quantisable(path: str, module: nn.Module) -> bool:
    """All linear layers but one, which stays dense among packed ones."""
    return isinstance(module, nn.Linear) and path != "layers.1.mlp.up_proj"


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """Each tensor that is not there is refused by its name."""
    folder = make_draft(tmp_path, layers=1)
    arrays = tensors_of(folder)
    for name in arrays:
        rest = {other: array for other, array in arrays.items() if other != name}
        save_file(rest, folder / "model.safetensors")
        assert f"tensor {name} is missing" in load_error(folder)


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    """A tensor the network has no place for, such as a DFlash2 convolution, is refused by name."""
    folder = make_draft(tmp_path)
    extra = "layers.0.attention_conv.base_kernel"
    save_file(
        tensors_of(folder) | {extra: np.ones((2, 2, 4), np.float32)}, folder / "model.safetensors"
    )
    assert f"tensor {extra} is not part of a DFlash draft" in load_error(folder)


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    """A tensor of another size than config.json says is refused with both shapes."""
    folder = make_draft(tmp_path)
    arrays = tensors_of(folder)
    shape = arrays["fc.weight"].shape
    save_file(
        arrays | {"fc.weight": arrays["fc.weight"][:, :-1].copy()}, folder / "model.safetensors"
    )
    message = load_error(folder)
    assert "tensor fc.weight has shape" in message
    assert f"asks for {shape}" in message


def test_copies_of_the_targets_tensors_are_ignored_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies of embedding and head in early uploads are left out, and the log says so."""
    folder = make_draft(tmp_path)
    with caplog.at_level(logging.WARNING):
        load(folder)
        assert not caplog.messages
        copies = {
            "embed_tokens.weight": np.ones((3, 2), np.float32),
            "lm_head.weight": np.ones((3, 2), np.float32),
        }
        save_file(tensors_of(folder) | copies, folder / "model.safetensors")
        load(folder)
    assert len(caplog.messages) == 1
    for part in ("draft_tensors_ignored", "embed_tokens.weight", "lm_head.weight", str(folder)):
        assert part in caplog.messages[0]


def test_no_weights(tmp_path: Path) -> None:
    """A draft folder without weights, or with a torn file, is refused by its path."""
    folder = make_draft(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "cannot be read" in load_error(folder)
    file.unlink()
    assert "has no *.safetensors file" in load_error(folder)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn"},
        {"rope_type": "llama3", "factor": "x"},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "mrope"},
        {"rope_type": ["yarn"]},
        {"rope_type": "unheard of"},
        {"rope_type": "longrope", "original_max_position_embeddings": None},
    ],
)
def test_an_unusable_rope_scaling_is_named(tmp_path: Path, scaling: dict[str, Any]) -> None:
    """A rope_scaling that lacks what its type needs is refused as that."""
    folder = make_draft(tmp_path)
    config = draft_config(read_config(folder) | {"rope_scaling": scaling}, "here")
    with pytest.raises(DflashError, match="rope_scaling") as caught:
        load_draft(folder, config, None)
    assert caught.value.code == ErrorCode.load_failed
