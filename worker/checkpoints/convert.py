"""The embedded model's GGUF file as a folder that mlx-lm loads.

Nothing is computed: the packed weights, their float16 scales and biases and the float32 norms
are the file's own. Whoever loads the folder decides about dequantising and casting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...protocol.errors import DflashError, ErrorCode
from ..errand import Progress
from .convert_tokenizer import write_tokenizer

GROUP_SIZE = 32
LINEAR_BITS = 4

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write config, weights and tokenizer into ``folder``; raises DflashError(unsupported)."""
    arrays, metadata = _load(gguf)
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise DflashError(
            ErrorCode.unsupported,
            f"cannot convert a GGUF file of architecture {architecture!r}: only 'llama' is known",
        )
    folder.mkdir(parents=True, exist_ok=True)
    stages = ("tokenizer", "weights", "configuration")
    progress("convert", 0, len(stages), "files")
    write_tokenizer(metadata, folder)
    progress("convert", 1, len(stages), "files")
    weights = {mlx_name(name): array for name, array in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    progress("convert", 2, len(stages), "files")
    config = _config(metadata, weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    progress("convert", 3, len(stages), "files")


def mlx_name(name: str) -> str:
    """``blk.7.attn_q.scales`` is mlx-lm's ``model.layers.7.self_attn.q_proj.scales``."""
    try:
        if not name.startswith("blk."):
            base, part = name.split(".")
            return f"{_TOP_NAMES[base]}.{part}"
        _, layer, base, part = name.split(".")
        return f"model.layers.{layer}.{_BLOCK_NAMES[base]}.{part}"
    except (KeyError, ValueError):
        raise DflashError(
            ErrorCode.unsupported, f"cannot convert a GGUF file with the tensor {name!r}"
        ) from None


def _load(gguf: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    loaded = mx.load(str(gguf), format="gguf", return_metadata=True)
    if not isinstance(loaded, tuple):
        raise TypeError("mlx returned no GGUF metadata")
    return loaded


def _config(metadata: Mapping[str, Any], weights: Mapping[str, mx.array]) -> dict[str, Any]:
    heads = int(metadata["llama.attention.head_count"])
    hidden = int(metadata["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "vocab_size": int(metadata["llama.vocab_size"]),
        "max_position_embeddings": int(metadata["llama.context_length"]),
        # The file holds 1e-05 in single precision; the decimal it was written from is meant.
        "rms_norm_eps": float(f"{float(metadata['llama.attention.layer_norm_rms_epsilon']):.6g}"),
        "rope_theta": float(metadata["llama.rope.freq_base"]),
        # llama.cpp permutes the q and k rows for interleaved rotation: read them as they are.
        "rope_traditional": True,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(metadata["tokenizer.ggml.padding_token_id"]),
        "quantization": _quantization(weights),
    }


def _quantization(weights: Mapping[str, mx.array]) -> dict[str, Any]:
    """The common layout, and an entry for each layer that differs (the 8-bit embedding)."""
    entries: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": LINEAR_BITS}
    for name, scales in weights.items():
        layer, _, part = name.rpartition(".")
        if part != "scales":
            continue
        packed = weights[f"{layer}.weight"]
        bits = packed.shape[1] * 32 // (scales.shape[1] * GROUP_SIZE)
        if bits != LINEAR_BITS:
            entries[layer] = {"group_size": GROUP_SIZE, "bits": bits}
    return entries
