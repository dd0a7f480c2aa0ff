from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker.checkpoints.convert import convert, mlx_name
from dflashd.worker.machine import open_files

TEXTS = (
    "Hello world, it's 1234567 o'clock.\n\n  Indented,\ttabbed; \"quoted\" — dashed…",
    "def f(x: int) -> int:\n    return x ** 2  # squares 3 to 9\n",
    "Größe, façade, naïve, Ærøskøbing",
    "日本語のテキスト。中文文本。한국어 텍스트",
    "مرحبا بالعالم · Привет, мир · Γειά σου Κόσμε",
    "😀 🏳️‍🌈 👩‍👩‍👧‍👦",
    " leading and trailing ",
)


@pytest.fixture(scope="module")
def loaded(smollm2_folder: Path) -> tuple[Any, Any]:
    """The model and tokenizer as mlx-lm loads them, dequantised to float32."""
    with open_files.kept():
        from mlx_lm import load
        from mlx_lm.utils import dequantize_model
    model, tokenizer = load(str(smollm2_folder))[:2]
    model.set_dtype(mx.float32)
    return dequantize_model(model), tokenizer


def greedy(loaded: tuple[Any, Any], question: str, max_tokens: int) -> str:
    from mlx_lm import generate

    model, tokenizer = loaded
    turns = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    return generate(model, tokenizer, prompt, max_tokens=max_tokens)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_tokenizer(smollm2_tokenizer: Any, text: str):
    """Text of many kinds is encoded and decoded without a change."""
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


@pytest.fixture(scope="module")
def written(smollm2_folder: Path) -> Tokenizer:
    """The tokenizer of the file, without transformers."""
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


@given(text=st.text(max_size=80))
def test_transformers_reads_the_tokenizer_as_it_was_written(
    written: Tokenizer, smollm2_tokenizer: Any, text: str
):
    """What mlx-lm loads splits any text as the file says: nothing was replaced on the way."""
    assert smollm2_tokenizer.encode(text) == written.encode(text).ids


def test_each_digit_is_a_token(smollm2_tokenizer: Any):
    """The pre-tokenizer is the model's own: numbers are read digit by digit."""
    tokens = smollm2_tokenizer.encode("2048")
    assert [smollm2_tokenizer.decode([token]) for token in tokens] == ["2", "0", "4", "8"]


def test_the_tokens_of_the_file_are_kept(smollm2_tokenizer: Any):
    """Known pieces have the numbers the model was trained with."""
    assert smollm2_tokenizer.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    assert smollm2_tokenizer.eos_token_ids == {2}


def test_the_weights_keep_the_files_layout(smollm2_folder: Path):
    """Linear layers stay 4 bit and the embedding 8 bit in groups of 32, norms float32."""
    weights = mx.load(str(smollm2_folder / "model.safetensors"))
    assert isinstance(weights, dict)
    config = json.loads((smollm2_folder / "config.json").read_text())
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
    q = "model.layers.0.self_attn.q_proj"
    assert (weights[f"{q}.weight"].dtype, weights[f"{q}.weight"].shape) == (mx.uint32, (576, 72))
    assert (weights[f"{q}.scales"].dtype, weights[f"{q}.scales"].shape) == (mx.float16, (576, 18))
    assert weights["model.norm.weight"].dtype == mx.float32
    assert "lm_head.weight" not in weights


def test_the_model_answers_in_english(loaded: tuple[Any, Any]):
    """Rotation, row order, scales and template are right: it knows the capital of France."""
    answer = greedy(loaded, "What is the capital of France?", 12)
    assert answer.startswith("The capital of France is Paris.")


def test_the_model_continues_far_apart(loaded: tuple[Any, Any]):
    """Attention over distance works: it repeats a word from the beginning of its prompt."""
    question = "Repeat this word and nothing else: butterfly"
    assert "butterfly" in greedy(loaded, question, 12).lower()


@pytest.mark.parametrize(
    ("gguf", "mlx"),
    [
        ("blk.7.attn_q.scales", "model.layers.7.self_attn.q_proj.scales"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("token_embd.biases", "model.embed_tokens.biases"),
        ("output_norm.weight", "model.norm.weight"),
    ],
)
def test_tensors_get_mlx_lms_names(gguf: str, mlx: str):
    """Each tensor of the file has its place in mlx-lm's model."""
    assert mlx_name(gguf) == mlx


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "output.weight", "blk.weight"])
def test_an_unknown_tensor_is_refused(name: str):
    """A file that holds something else is not converted by half."""
    with pytest.raises(DflashError, match=name) as caught:
        mlx_name(name)
    assert caught.value.code is ErrorCode.unsupported


def test_another_architecture_is_refused(tmp_path: Path):
    """A GGUF file of another architecture is named as such, and nothing is written."""
    gguf = tmp_path / "other.gguf"
    mx.save_gguf(str(gguf), {"a": mx.zeros(4)}, {"general.architecture": "qwen3"})
    with pytest.raises(DflashError, match="'qwen3'") as caught:
        convert(gguf, tmp_path / "out", lambda *_: None)
    assert caught.value.code is ErrorCode.unsupported
    assert not (tmp_path / "out").exists()
