"""Draft checkpoints: every public shape is read right, everything else is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker.checkpoints.draft_config import (
    DraftConfig,
    default_target_layer_ids,
    draft_config,
)
from dflashd.worker.checkpoints.draft_kinds import is_draft
from dflashd.worker.checkpoints.fields import read_config
from dflashd.worker.checkpoints.target_shape import TargetShape, check_pair

FLAT: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 16,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "num_target_layers": 36,
    "sliding_window": None,
    "use_sliding_window": False,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
SLIDING: dict[str, Any] = FLAT | {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "rope_theta": 10000000,
    "vocab_size": 248320,
    "num_target_layers": 64,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "sliding_window": 2048,
    "use_sliding_window": True,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
}
NESTED: dict[str, Any] = {
    key: value
    for key, value in SLIDING.items()
    if key not in ("rope_theta", "block_size", "rope_scaling")
} | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_target_layers": 40,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": 248070,
        "target_layer_ids": [1, 10, 19, 28, 37],
    },
}
VERSION_2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "num_target_layers": 52,
    "vocab_size": 202048,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": 201818,
        "target_layer_ids": [1, 13, 25, 37, 49],
        "conv_group_size": 64,
        "conv_kernel_size": 2,
        "selector_rank": 256,
        "selector_top_k": 16,
        "output_multiplier": 0.196,
        "final_logit_softcapping": 20.0,
        "input_embedding_scale": 1.0,
    },
}
SHAPES = {"flat": FLAT, "sliding": SLIDING, "nested": NESTED}
TARGET = TargetShape(name="qwen3-4b", hidden_size=2560, vocab_size=151936, num_layers=36)


def changed(base: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A copy of ``base`` with some fields replaced; ``dflash_config`` is merged, not replaced."""
    config = copy.deepcopy(base)
    nested = fields.pop("dflash_config", None)
    if nested is not None:
        config["dflash_config"] = config["dflash_config"] | nested
    return config | fields


def without(base: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of ``base`` in which neither level has ``key``."""
    config = copy.deepcopy(base)
    config.pop(key, None)
    config["dflash_config"].pop(key, None)
    return config


def refusal(config: dict[str, Any]) -> DflashError:
    with pytest.raises(DflashError) as caught:
        draft_config(config, "here")
    return caught.value


def draft_or_sentence(config: dict[str, Any]) -> DraftConfig | str:
    try:
        return draft_config(config, "here")
    except DflashError as error:
        return error.message


def test_flat_checkpoint() -> None:
    """Qwen3-4B-DFlash-b16 (shape A) is read with every figure it has in public."""
    draft = draft_config(FLAT, "here")
    assert draft == DraftConfig(
        hidden_size=2560,
        intermediate_size=9728,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        max_position_embeddings=40960,
        vocab_size=151936,
        block_tokens=16,
        num_target_layers=36,
        target_layer_ids=(1, 9, 17, 25, 33),
        mask_token_id=151669,
        layer_types=("full_attention",) * 5,
        sliding_window=None,
        is_causal=None,
        output_multiplier=1.0,
        final_logit_softcapping=0.0,
        input_embedding_scale=1.0,
    )
    assert draft.num_hidden_layers == 5
    assert draft.feature_size == 5 * 2560
    assert not any(draft.causal_in_block(layer) for layer in range(5))


def test_sliding_checkpoint() -> None:
    """Qwen3.6-27B-DFlash (shape B): four sliding layers, causal in the block, then a full one."""
    draft = draft_config(SLIDING, "here")
    assert draft.layer_types == ("sliding_attention",) * 4 + ("full_attention",)
    assert draft.sliding_window == 2048
    assert draft.is_causal is None
    assert [draft.causal_in_block(layer) for layer in range(5)] == [True] * 4 + [False]
    assert (draft.hidden_size, draft.rope_theta, draft.num_target_layers) == (5120, 1e7, 64)
    assert draft.target_layer_ids == (1, 16, 31, 46, 61)


def test_nested_checkpoint() -> None:
    """Qwen3.6-35B-A3B-DFlash (shape C): theta and block length come from the nested objects."""
    draft = draft_config(NESTED, "here")
    assert (draft.rope_theta, draft.rope_scaling, draft.block_tokens) == (1e7, None, 16)
    assert draft.target_layer_ids == (1, 10, 19, 28, 37)


def test_window_is_read_without_use_sliding_window() -> None:
    """A sliding window counts whatever use_sliding_window says: the raw JSON is what is meant."""
    assert draft_config(changed(SLIDING, use_sliding_window=False), "here").sliding_window == 2048


def test_is_causal_false_lifts_the_causal_mask() -> None:
    """A checkpoint that says is_causal false, at either level, is bidirectional everywhere."""
    for config in (
        changed(SLIDING, is_causal=False),
        changed(SLIDING, dflash_config={"is_causal": False}),
    ):
        draft = draft_config(config, "here")
        assert not any(draft.causal_in_block(layer) for layer in range(5))


@pytest.mark.parametrize(
    ("field", "attribute", "nested", "top"),
    [
        ("block_size", "block_tokens", 8, 4),
        ("mask_token_id", "mask_token_id", 7, 9),
        ("target_layer_ids", "target_layer_ids", [2, 3], [4, 5]),
        ("num_target_layers", "num_target_layers", 30, 20),
        ("is_causal", "is_causal", False, True),
        ("output_multiplier", "output_multiplier", 0.5, 2.0),
        ("final_logit_softcapping", "final_logit_softcapping", 20.0, 30.0),
        ("input_embedding_scale", "input_embedding_scale", 3.0, 4.0),
    ],
)
def test_nested_wins(field: str, attribute: str, nested: Any, top: Any) -> None:
    """A field of dflash_config wins over the same at the top, which counts if it is alone."""

    def read(config: dict[str, Any]) -> Any:
        value = getattr(draft_config(config, "here"), attribute)
        return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]

    bare = without(FLAT, field)
    assert read(changed(bare, **{field: top}, dflash_config={field: nested})) == nested
    assert read(changed(bare, **{field: top}, dflash_config={field: None})) == top
    assert read(changed(bare, **{field: top})) == top


def test_rope_theta_chain() -> None:
    """Theta: the top level, then rope_parameters, then rope_scaling, then 10000."""
    parameters, scaling = {"rope_theta": 2e6}, {"rope_theta": 3e6, "type": "default"}
    chain = changed(FLAT, rope_parameters=parameters, rope_scaling=scaling)
    assert draft_config(chain, "here").rope_theta == 1e6
    del chain["rope_theta"]
    assert draft_config(chain, "here").rope_theta == 2e6
    chain["rope_parameters"] = {"rope_type": "default"}
    assert draft_config(chain, "here").rope_theta == 3e6
    chain["rope_scaling"] = None
    assert draft_config(chain, "here").rope_theta == 10_000


def test_rope_scaling() -> None:
    """Scaling is rope_parameters without theta, and nothing at all where its type is default."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
    bare = without(FLAT, "rope_theta")
    draft = draft_config(changed(bare, rope_parameters=yarn), "here")
    assert draft.rope_scaling == {"rope_type": "yarn", "factor": 4.0}
    assert draft.rope_theta == 5e5
    old = draft_config(changed(FLAT, rope_scaling={"type": "linear", "factor": 2.0}), "here")
    assert old.rope_scaling == {"type": "linear", "factor": 2.0}
    for plain in ({"rope_type": "default"}, {"type": "default"}, {"rope_theta": 5e5}, {}):
        assert draft_config(changed(FLAT, rope_parameters=plain), "here").rope_scaling is None


@pytest.mark.parametrize(
    ("target_layers", "draft_layers", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 5, (1, 10, 19, 28, 37)),
        (32, 5, (1, 8, 15, 22, 29)),
        (30, 1, (15,)),
        (7, 2, (1, 4)),
    ],
)
def test_default_layer_ids(
    target_layers: int, draft_layers: int, expected: tuple[int, ...]
) -> None:
    """Absent layer ids follow the authors' formula, which gives the public checkpoints' own."""
    assert default_target_layer_ids(target_layers, draft_layers) == expected
    config = changed(
        without(FLAT, "target_layer_ids"),
        num_target_layers=target_layers,
        num_hidden_layers=draft_layers,
    )
    assert draft_config(config, "here").target_layer_ids == expected


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (changed(FLAT, architectures=["DFlashLagunaForCausalLM"]), "Laguna"),
        (changed(FLAT, architectures=["DSparkDraftModel"]), "DSpark"),
        (changed(FLAT, architectures=["Lfm2DSparkDraftModel"]), "DSpark"),
        (changed(FLAT, architectures=["DominoDraftModel"]), "Domino"),
        (changed(FLAT, use_swa=True), "ModelOpt"),
        (changed(FLAT, use_swa=False), "ModelOpt"),
        (changed(FLAT, quantization_config={"quant_method": "fp8"}), "quantised"),
    ],
)
def test_other_kinds_are_refused_by_name(config: dict[str, Any], names: str) -> None:
    """Each kind of draft we cannot run is refused as what it is, with what we can run."""
    error = refusal(config)
    assert error.code == ErrorCode.unsupported
    assert names in error.message
    assert "supported are" in error.message
    assert is_draft(config)


def test_version_2() -> None:
    """A DFlash2 checkpoint tells its convolutions and its selector, and lacks neither."""
    draft = draft_config(VERSION_2, "here")
    assert (draft.conv_kernel_size, draft.conv_group_size) == (2, 64)
    assert (draft.selector_rank, draft.selector_top_k) == (256, 16)
    assert draft.block_tokens == 16
    assert draft.rope_theta == 5e5
    assert (draft.output_multiplier, draft.final_logit_softcapping) == (0.196, 20.0)
    assert not any(draft.causal_in_block(layer) for layer in range(5))
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        nested = {k: v for k, v in VERSION_2["dflash_config"].items() if k != key}
        error = refusal(VERSION_2 | {"dflash_config": nested})
        assert error.code == ErrorCode.load_failed
        assert f"lacks '{key}'" in error.message
    assert (
        "conv_group_size"
        in refusal(changed(VERSION_2, dflash_config={"conv_group_size": 7})).message
    )


def test_an_assistant_has_its_fields_at_the_top() -> None:
    """An assistant leaves vocabulary and depth to its target and is never causal."""
    nested = VERSION_2["dflash_config"] | {"block_size": 12}
    config = without(VERSION_2, "vocab_size") | nested
    config |= {"architectures": ["MuseGlimmerAssistantModel"], "is_causal": True}
    del config["dflash_config"], config["num_target_layers"]
    draft = draft_config(config, "here")
    assert is_draft(config)
    assert (draft.vocab_size, draft.num_target_layers, draft.block_tokens) == (0, 0, 12)
    assert draft.target_layer_ids == (1, 13, 25, 37, 49)
    assert not any(draft.causal_in_block(layer) for layer in range(5))
    shape = TargetShape(name="t", hidden_size=6656, vocab_size=202048, num_layers=52)
    check_pair(draft, shape, "here")
    with pytest.raises(DflashError, match="mask_token_id"):
        check_pair(draft, dataclasses.replace(shape, vocab_size=1000), "here")
    with pytest.raises(DflashError, match="reads layer 49"):
        check_pair(draft, dataclasses.replace(shape, num_layers=40), "here")


def test_quantisation_as_mlx_lm_writes_it() -> None:
    """Group size and bits are read, with exceptions by path; both must be there."""
    settings = {"bits": 4, "group_size": 64, "fc": {"bits": 8, "group_size": 32}}
    config = changed(FLAT, quantization=settings, quantization_config=settings)
    assert draft_config(config, "here").quantization == settings
    assert "bits" in refusal(changed(FLAT, quantization={"group_size": 64})).message


def test_an_empty_quantization_is_none() -> None:
    """A null or empty quantisation, as some tools write it, refuses nothing."""
    assert draft_config(changed(FLAT, quantization=None, quantization_config={}), "here")


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560},
        {"model_type": "llama"},
        {"architectures": "DFlashDraftModel"},
        {},
    ],
)
def test_a_model_given_as_draft(config: dict[str, Any]) -> None:
    """A full model in the draft's place is refused with a hint where it belongs."""
    error = refusal(config)
    assert error.code == ErrorCode.unsupported
    assert "not a DFlash draft" in error.message
    assert "belongs under 'target'" in error.message
    assert not is_draft(config)


def test_a_draft_is_told_from_a_model() -> None:
    """Every draft shape is known as one; full models, also of families with drafts, are not."""
    assert all(is_draft(config) for config in SHAPES.values())
    assert is_draft({"dflash_config": {}})
    for name in ("LlamaForCausalLM", "LagunaForCausalLM", "Qwen3ForCausalLM"):
        assert not is_draft({"architectures": [name]})


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "num_target_layers",
        "mask_token_id",
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_missing_keys(shape: str, key: str) -> None:
    """A field that cannot be guessed is named when it is missing, and when it is null."""
    for config in (
        without(SHAPES[shape], key),
        changed(without(SHAPES[shape], key), **{key: None}),
    ):
        error = refusal(config)
        assert error.code == ErrorCode.load_failed
        assert f"lacks '{key}'" in error.message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (changed(FLAT, layer_types=["full_attention"] * 4), "4 layer_types for 5 layers"),
        (changed(SLIDING, layer_types=["chunked_attention"] * 5), "chunked_attention"),
        (changed(SLIDING, sliding_window=None), "need a sliding_window"),
        (changed(FLAT, block_size=1), "block_size"),
        (changed(FLAT, dflash_config={"target_layer_ids": [1, -1]}), "target_layer_ids"),
        (changed(FLAT, dflash_config={"mask_token_id": 151936}), "mask_token_id 151936"),
        (changed(FLAT, dflash_config={"mask_token_id": -1}), "mask_token_id"),
        (changed(FLAT, num_key_value_heads=5), "evenly"),
        (changed(FLAT, head_dim=127), "head_dim 127"),
        (changed(FLAT, num_attention_heads=0), "num_attention_heads"),
        (changed(FLAT, num_hidden_layers=10**12), "num_hidden_layers"),
        (changed(FLAT, num_hidden_layers=2.5), "num_hidden_layers"),
        (changed(FLAT, hidden_size="2560"), "hidden_size"),
        (changed(FLAT, rope_theta=float("nan")), "rope_theta"),
        (changed(FLAT, rms_norm_eps=10**400), "rms_norm_eps"),
        (
            changed(without(FLAT, "target_layer_ids"), num_target_layers=2),
            "2 target layers are too few",
        ),
    ],
)
def test_broken_values_are_named(config: dict[str, Any], says: str) -> None:
    """A value that cannot be is refused with its field's name."""
    error = refusal(config)
    assert error.code == ErrorCode.load_failed
    assert says in error.message


@pytest.mark.parametrize(
    ("target", "draft_says", "target_says", "what"),
    [
        (dataclasses.replace(TARGET, hidden_size=4096), "2560", "4096", "hidden size"),
        (dataclasses.replace(TARGET, vocab_size=151937), "151936", "151937", "vocabulary"),
        (dataclasses.replace(TARGET, num_layers=35), "36", "35", "number of target layers"),
    ],
)
def test_a_wrong_pair_is_named(
    target: TargetShape, draft_says: str, target_says: str, what: str
) -> None:
    """A draft for another target is refused with both sides' figure, and both names."""
    with pytest.raises(DflashError) as caught:
        check_pair(draft_config(FLAT, "the-draft"), target, "the-draft")
    message = caught.value.message
    assert caught.value.code == ErrorCode.load_failed
    for part in (draft_says, target_says, what, "the-draft", target.name):
        assert part in message


def test_a_layer_beyond_the_target_is_named() -> None:
    """A draft that reads a layer the target does not have is refused with the layer's number."""
    draft = draft_config(changed(FLAT, dflash_config={"target_layer_ids": [1, 36]}), "d")
    with pytest.raises(DflashError, match=r"reads layer 36.*layers 0 to 35"):
        check_pair(draft, TARGET, "d")


def test_a_right_pair_passes() -> None:
    """The pair that belongs together is accepted, its deepest layer included."""
    check_pair(draft_config(FLAT, "d"), TARGET, "d")
    last = draft_config(changed(FLAT, dflash_config={"target_layer_ids": [0, 35]}), "d")
    check_pair(last, TARGET, "d")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 10**12, 10**400])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)
KEYS = sorted({*FLAT, *SLIDING, *NESTED, "is_causal", "output_multiplier", "rope_scaling"})
DFLASH_KEYS = sorted({*NESTED["dflash_config"], "is_causal", "final_logit_softcapping"})
ROPE_KEYS = ["rope_theta", "rope_type", "type", "factor"]
PLACES = (
    [(key,) for key in KEYS]
    + [("dflash_config", key) for key in DFLASH_KEYS]
    + [("rope_parameters", key) for key in ROPE_KEYS]
)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    changes=st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3),
)
@example(shape="nested", changes=[(("dflash_config",), [1])])
@example(shape="flat", changes=[(("architectures",), 5)])
@example(shape="flat", changes=[(("architectures",), ["x" * 100_000])])
@example(shape="flat", changes=[(("num_attention_heads",), 0), (("head_dim",), None)])
@example(shape="flat", changes=[(("hidden_size",), float("inf"))])
@settings(max_examples=400)
def test_junk_gives_a_typed_error_or_a_usable_shape(
    shape: str, changes: list[tuple[tuple[str, ...], Any]]
) -> None:
    """Any JSON in any field's place is refused in one short sentence, or read as a sane shape."""
    config = copy.deepcopy(SHAPES[shape])
    for place, value in changes:
        inner = config
        for key in place[:-1]:
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[place[-1]] = value
    is_draft(config)
    draft = draft_or_sentence(config)
    if isinstance(draft, str):
        assert 0 < len(draft) < 500
        return
    assert draft.num_hidden_layers >= 1
    assert draft.feature_size > 0
    assert all(i >= 0 for i in draft.target_layer_ids)
    assert 0 <= draft.mask_token_id < draft.vocab_size
    assert draft.rope_theta > 0


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (None, ErrorCode.not_found, "has no config.json"),
        (b"{", ErrorCode.load_failed, "cannot be read"),
        (b"\xff\xfe", ErrorCode.load_failed, "cannot be read"),
        (b"[" * 200_000, ErrorCode.load_failed, "cannot be read"),
        (b"[1]", ErrorCode.load_failed, "not a JSON object"),
    ],
)
def test_unreadable_configuration(
    tmp_path: Path, content: bytes | None, code: ErrorCode, says: str
) -> None:
    """A folder without a readable config.json gets one typed error that names the path."""
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(DflashError) as caught:
        read_config(tmp_path)
    assert caught.value.code == code
    assert says in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_configuration_is_read_as_utf_8(tmp_path: Path) -> None:
    """config.json is UTF-8 whatever the system's locale is."""
    (tmp_path / "config.json").write_bytes(json.dumps({"a": "ü"}, ensure_ascii=False).encode())
    assert read_config(tmp_path) == {"a": "ü"}
