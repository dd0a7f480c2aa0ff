"""A load that fails says why in one sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import llama, qwen3
from safetensors.numpy import (  # pyright: ignore[reportMissingTypeStubs]
    load_file,  # pyright: ignore[reportUnknownVariableType]
    save_file,  # pyright: ignore[reportUnknownVariableType]
)

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import LoadBody
from dflashd.worker.decoding import draft as draft_module
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.model import Model
from dflashd.worker.errand import Progress

from ..tiny import MASK_TOKEN_ID, Shape, make_draft, make_target
from .block_run import plain_tokens
from .held_memory import held_bytes

pytestmark = pytest.mark.slow

CLASSES: list[type] = [
    nn.Module,
    nn.Linear,
    nn.Embedding,
    nn.RMSNorm,
    llama.Model,
    llama.LlamaModel,
    llama.TransformerBlock,
    llama.Attention,
    qwen3.TransformerBlock,
    draft_module.DraftModel,
    draft_module.DraftLayer,
]

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    make_target(folder / "target")
    make_draft(folder / "draft")
    return folder


@pytest.fixture
def pair(original: Path, tmp_path: Path) -> Pair:
    """A target and the draft made for it, to be spoilt."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "target", tmp_path / "draft"


@pytest.fixture(autouse=True)
def nothing_left_behind(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """After each test mlx holds no byte more than before, and no class has changed."""
    before, classes = held_bytes(), [dict(vars(cls)) for cls in CLASSES]
    yield
    caplog.get_records(
        "call"
    ).clear()  # records hold tracebacks, and those the arrays of their frames
    assert held_bytes() <= before
    assert [dict(vars(cls)) for cls in CLASSES] == classes


def load(target: Path | str, draft: Path | str | None = None, **fields: Any) -> Model:
    given = None if draft is None else str(draft)
    return load_model("m", LoadBody(target=str(target), draft=given, **fields), lambda *_: None)


def refusal(target: Path | str, draft: Path | str | None = None, **fields: Any) -> DflashError:
    """The load's error, without the traceback that refers to all it had loaded."""
    with pytest.raises(DflashError) as caught:
        load(target, draft, **fields)
    code, message = caught.value.code, caught.value.message
    del caught
    assert 0 < len(message) < 2048
    assert "\n" not in message
    assert "Traceback" not in message
    return DflashError(code, message)


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def test_a_missing_folder(pair: Pair, tmp_path: Path) -> None:
    """A path that is not there is not_found, for the target and for the draft."""
    target, _ = pair
    for error in (refusal(tmp_path / "none"), refusal(target, tmp_path / "none")):
        assert error.code == ErrorCode.not_found
        assert str(tmp_path / "none") in error.message


def test_an_impossible_path() -> None:
    """A path no file system can hold is refused like any other."""
    assert refusal("/" + "x" * 4000).code in (ErrorCode.not_found, ErrorCode.load_failed)


def test_no_weights(pair: Pair) -> None:
    """A folder without weights is refused, whichever of the two it is."""
    target, draft = pair
    weights(draft).unlink()
    error = refusal(target, draft)
    assert error.code == ErrorCode.load_failed
    assert f"{draft} has no *.safetensors" in error.message
    weights(target).unlink()
    error = refusal(target)
    assert error.code == ErrorCode.load_failed
    assert str(target) in error.message


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.9999])
@pytest.mark.parametrize("which", [0, 1])
def test_torn_weights(pair: Pair, which: int, keep: float) -> None:
    """A weight file cut short anywhere is refused before anything computes with it."""
    file = weights(pair[which])
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    assert refusal(*pair).code == ErrorCode.load_failed


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_tensor(pair: Pair, which: int) -> None:
    """A checkpoint that lacks a tensor is refused with the tensor's name."""
    arrays = load_file(weights(pair[which]))
    name = next(name for name in sorted(arrays) if name.endswith("layers.0.mlp.up_proj.weight"))
    del arrays[name]
    save_file(arrays, weights(pair[which]))
    error = refusal(*pair)
    assert error.code == ErrorCode.load_failed
    assert name in error.message


def test_a_misshapen_target(pair: Pair) -> None:
    """A target whose tensors are not of its configuration's sizes is refused."""
    edit(pair[0], hidden_size=32)
    assert refusal(pair[0]).code == ErrorCode.load_failed


@pytest.mark.parametrize(
    ("shape", "fields", "says"),
    [
        (Shape(hidden=32), {}, "hidden size 32, the target has 64"),
        (Shape(), {"vocab_size": 299}, "vocabulary 299, the target has 300"),
        (Shape(layers=7), {}, "number of target layers 7, the target has 6"),
        (
            Shape(),
            {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 6]}},
            "reads layer 6",
        ),
        (
            Shape(),
            {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 2, 3]}},
            "tensor fc.weight has shape",
        ),
        (Shape(), {"num_hidden_layers": 3, "layer_types": None}, "layers.2."),
        (Shape(), {"head_dim": 8}, "has shape"),
        (Shape(), {"rope_scaling": {"type": "mrope"}}, "rope_scaling"),
    ],
)
def test_a_wrong_pair(pair: Pair, shape: Shape, fields: dict[str, Any], says: str) -> None:
    """A draft that does not fit is refused with a sentence that names the mismatch."""
    target, draft = pair
    make_draft(draft, shape)
    edit(draft, **fields)
    error = refusal(target, draft)
    assert error.code == ErrorCode.load_failed
    assert says in error.message
    assert str(draft) in error.message


def test_places_swapped(pair: Pair) -> None:
    """A draft given as target, or a model as draft, is refused with a hint, weights unread."""
    target, draft = pair
    for file in (weights(target), weights(draft)):
        file.write_bytes(b"never read")
    error = refusal(draft)
    assert error.code == ErrorCode.load_failed
    assert "is a DFlash draft, not a model; put it under 'draft'" in error.message
    error = refusal(target, target)
    assert error.code == ErrorCode.unsupported
    assert "belongs under 'target'" in error.message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "gpt_unheard_of"}, "gpt_unheard_of"),
        ({"model_type": ["llama"]}, "model m cannot be loaded"),
        ({"model_type": None}, "model m cannot be loaded"),
        ({"vocab_size": 0}, "model m cannot be loaded"),
        ({"num_attention_heads": 0, "head_dim": None}, "model m cannot be loaded"),
        ({"text_config": 7}, "model m cannot be loaded"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings must be a whole number"),
        ({"text_config": []}, "text_config must be a JSON object"),
        ({"layer_types": ["sliding_attention"] * 6}, "model m cannot be loaded"),
    ],
)
def test_an_unusable_target(pair: Pair, fields: dict[str, Any], says: str) -> None:
    """A target that mlx-lm does not know, or whose configuration is broken, is refused as such."""
    edit(pair[0], **fields)
    error = refusal(pair[0])
    assert error.code == ErrorCode.load_failed
    assert says in error.message


def test_a_field_that_only_the_tokenizers_library_checks(pair: Pair) -> None:
    """A field of a wrong type that mlx-lm takes is refused with the field's name."""
    edit(pair[0], rms_norm_eps=True)
    error = refusal(pair[0])
    assert error.code == ErrorCode.load_failed
    assert "rms_norm_eps" in error.message


def test_no_tokenizer(pair: Pair) -> None:
    """A target without a tokenizer is refused."""
    (pair[0] / "tokenizer.json").unlink()
    assert refusal(*pair).code == ErrorCode.load_failed


def test_a_context_that_a_model_is_stretched_to(pair: Pair) -> None:
    """With YaRN in its configuration a model reads what that makes of it, and no more."""
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    edit(pair[0], rope_scaling=yarn)
    body = LoadBody(target=str(pair[0]), context_tokens=8000)
    assert load_model("m", body, lambda *_: None).context_tokens == 8000
    assert "8192" in refusal(pair[0], context_tokens=8193).message


def test_a_context_beyond_the_models(pair: Pair) -> None:
    """A context longer than the model was made for is refused with both lengths, weights unread."""
    weights(pair[0]).write_bytes(b"never read")
    error = refusal(pair[0], context_tokens=4097)
    assert error.code == ErrorCode.bad_request
    assert "4097" in error.message
    assert "4096" in error.message


@pytest.mark.parametrize("tokens", [[], [300], [-1], ["1"], {"1": 1}, 7, [True], [1.5]])
def test_unusable_frequent_tokens(pair: Pair, tokens: object) -> None:
    """A list of proposed tokens that is no list of tokens is refused."""
    (pair[1] / "frequent_tokens.json").write_text(json.dumps(tokens))
    assert refusal(*pair).code == ErrorCode.load_failed


def stopping(at: str) -> Progress:
    def progress(stage: str, done: int, total: int, unit: str) -> None:
        if stage == at and done:
            raise DflashError(ErrorCode.shutting_down, "withdrawn")

    return progress


@pytest.mark.parametrize("stage", ["digest", "weights"])
def test_a_withdrawn_load(pair: Pair, stage: str) -> None:
    """A load ended by its progress callback raises what that raised."""
    body = LoadBody(target=str(pair[0]), draft=str(pair[1]))
    with pytest.raises(DflashError, match="withdrawn") as caught:
        load_model("m", body, stopping(stage))
    code = caught.value.code
    del caught
    assert code == ErrorCode.shutting_down


def test_a_good_load_states_its_facts(pair: Pair) -> None:
    """What a load reports is what the files hold; unloading gives all memory back."""
    stages: list[tuple[str, int, int, str]] = []
    body = LoadBody(target=str(pair[0]), draft=str(pair[1]), context_tokens=100)
    model = load_model("m", body, lambda *stage: stages.append(stage))
    assert (model.engine, model.engine_reason, model.block_tokens) == ("dflash", "", 8)
    assert (model.context_tokens, model.vocab_size) == (100, 300)
    parameters = [load_file(weights(folder)) for folder in pair]
    stored = sum(array.nbytes for arrays in parameters for array in arrays.values())
    assert model.memory_bytes == stored
    assert len(model.digest) == 64
    for stage in ("digest", "weights"):
        done = [(done, total) for name, done, total, _ in stages if name == stage]
        assert done[-1][0] == done[-1][1] > 0
        assert done == sorted(done)


def test_the_digest_is_the_weights(pair: Pair) -> None:
    """Other weights at the same path have another digest; the same weights elsewhere the same."""
    target, draft = pair
    first = load(target, draft).digest
    assert load(target, draft).digest == first
    moved = target.rename(target.with_name("elsewhere"))
    assert load(moved, draft).digest == first
    assert load(moved).digest != first
    arrays = load_file(weights(draft))
    arrays["fc.weight"][0, 0] += 1
    save_file(arrays, weights(draft))
    assert load(moved, draft).digest != first


def test_a_block_of_one_is_plain(pair: Pair) -> None:
    """A block length of 1 leaves nothing to draft: plain decoding, which says so."""
    model = load(*pair, block_tokens=1)
    assert (model.engine, model.block_tokens) == ("plain", 1)
    assert "block_tokens is 1" in model.engine_reason
    assert load(*pair, block_tokens=3).block_tokens == 3


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16", "keep"])
def test_dtypes(pair: Pair, dtype: str) -> None:
    """The configured dtype is what both networks compute in, and each of them decodes."""
    model = load(*pair, dtype=dtype)
    found = model.target.embed(mx.array([[1]])).dtype
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    wanted = {"keep": "float32", "auto": "float32" if on_cpu else str(found)}.get(dtype, dtype)
    assert str(found).endswith(wanted)
    assert model.drafter is not None
    assert model.drafter.draft.fc.weight.dtype == found
    assert len(plain_tokens(model, [5, 6], 4)) == 6


def test_proposals_keep_to_the_frequent_tokens(pair: Pair) -> None:
    """A draft with a list of frequent tokens holds that part of the head, and counts it."""
    frequent = [MASK_TOKEN_ID, 9, 100, 299]
    (pair[1] / "frequent_tokens.json").write_text(json.dumps(frequent))
    model = load(*pair)
    assert model.drafter is not None
    (head,) = model.drafter.arrays
    whole = load_file(weights(pair[0]))["lm_head.weight"]
    np.testing.assert_array_equal(np.array(head), whole[frequent])


def test_a_cpu_takes_blocks_in_whole_fours(pair: Pair, tmp_path: Path) -> None:
    """A trained block of 6 or 3 runs as 4 or 3 on a CPU; a configured one as it is."""
    assert mx.default_device().type == mx.DeviceType.cpu, "this suite computes on the CPU"
    for trained, used in ((6, 4), (4, 4), (3, 3)):
        draft = make_draft(tmp_path / f"of{trained}", block_tokens=trained)
        assert load(pair[0], draft).block_tokens == used
        assert load(pair[0], draft, block_tokens=6).block_tokens == 6
