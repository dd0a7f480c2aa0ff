"""Tiny random checkpoints in the true file formats: a llama, and a DFlash draft that fits it.

Made with numpy alone, so that a test's process need not import mlx. The same arguments give the
same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Arrays = dict[str, NDArray[np.float32]]

VOCAB_TOKENS = 300
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
EOS_TOKEN_ID = SPECIAL_TOKENS.index("<|im_end|>")
MASK_TOKEN_ID = SPECIAL_TOKENS.index("<|mask|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other one",
    "for item in range(10): print(item); return the sum of the items in the list",
    "what is the weather in the town on the other side of the river today?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a tiny target."""

    hidden: int = 64
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 128
    context_tokens: int = 4096

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def make_target(folder: Path, shape: Shape | None = None, *, seed: int = 0) -> Path:
    """Write a random llama with a byte-level tokenizer and a chat template into ``folder``."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.context_tokens,
        "vocab_size": VOCAB_TOKENS,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    }
    _write_json(folder / "config.json", config)
    save_file(_target_arrays(shape, seed), folder / "model.safetensors", {"format": "mlx"})
    write_tokenizer(folder)
    return folder


def make_draft(
    folder: Path,
    shape: Shape | None = None,
    *,
    seed: int = 1,
    layers: int = 2,
    block_tokens: int = 8,
    target_layer_ids: tuple[int, ...] = (1, 4),
) -> Path:
    """Write a random DFlash draft (flat ``config.json``) for a target of ``shape``."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": block_tokens,
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.context_tokens,
        "vocab_size": VOCAB_TOKENS,
        "num_target_layers": shape.layers,
        "layer_types": ["full_attention"] * layers,
        "dflash_config": {
            "mask_token_id": MASK_TOKEN_ID,
            "target_layer_ids": list(target_layer_ids),
        },
        "torch_dtype": "float32",
    }
    _write_json(folder / "config.json", config)
    arrays = _draft_arrays(shape, layers, len(target_layer_ids), seed)
    save_file(arrays, folder / "model.safetensors", {"format": "mlx"})
    return folder


def _target_arrays(shape: Shape, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    arrays = {
        "model.embed_tokens.weight": _matrix(random, VOCAB_TOKENS, shape.hidden),
        "model.norm.weight": np.ones(shape.hidden, np.float32),
        # Larger than usual, so that greedy decoding rarely meets a near tie.
        "lm_head.weight": 4 * _matrix(random, VOCAB_TOKENS, shape.hidden),
    }
    for layer in range(shape.layers):
        arrays |= _layer_arrays(random, shape, f"model.layers.{layer}")
    return arrays


def _draft_arrays(shape: Shape, layers: int, features: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    arrays = {
        "fc.weight": _matrix(random, shape.hidden, features * shape.hidden),
        "hidden_norm.weight": np.ones(shape.hidden, np.float32),
        "norm.weight": np.ones(shape.hidden, np.float32),
    }
    for layer in range(layers):
        prefix = f"layers.{layer}"
        arrays |= _layer_arrays(random, shape, prefix)
        for norm in ("q_norm", "k_norm"):
            arrays[f"{prefix}.self_attn.{norm}.weight"] = np.ones(shape.head_dim, np.float32)
    return arrays


def _layer_arrays(random: np.random.Generator, shape: Shape, prefix: str) -> Arrays:
    hidden, inner = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    arrays = {f"{prefix}.{name}.weight": _matrix(random, *size) for name, size in sizes.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        arrays[f"{prefix}.{norm}.weight"] = np.ones(hidden, np.float32)
    return arrays


def _matrix(random: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level tokenizer with a chat template and write it into ``folder``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    if tokenizer.get_vocab_size() != VOCAB_TOKENS:
        raise ValueError("the corpus has too few pairs for the vocabulary")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
