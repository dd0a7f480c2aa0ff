"""Tiny random checkpoints of every family, made with mlx-lm's own model classes."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..tiny import EOS_TOKEN_ID, VOCAB_TOKENS, Shape, make_draft, write_tokenizer

SHAPE = Shape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=48, context_tokens=512)
LAYER_IDS = (1, 0)

COMMON: dict[str, Any] = {
    "hidden_size": SHAPE.hidden,
    "num_hidden_layers": SHAPE.layers,
    "intermediate_size": SHAPE.intermediate,
    "num_attention_heads": SHAPE.heads,
    "num_key_value_heads": SHAPE.kv_heads,
    "head_dim": SHAPE.head_dim,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_TOKENS,
    "rope_theta": 10000.0,
    "max_position_embeddings": SHAPE.context_tokens,
    "tie_word_embeddings": False,
    "eos_token_id": EOS_TOKEN_ID,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A member of a family: its ``model_type``, what its configuration adds, and its storage."""

    model_type: str
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    module: str = ""
    quantised: bool = False
    mode: Literal["affine", "mxfp4"] = "affine"
    """How, if it is."""
    seed: int = 0
    """One whose greedy text is varied and free of near ties."""

    nested: bool = False
    """Whether the text model's fields stand under ``text_config``."""

    def quantises(self, path: str, module: Any) -> bool:
        """Which layers are packed: all that can be, or the experts alone, as gpt-oss is."""
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % 32:
            return False
        return self.mode == "affine" or ".experts." in path

    @property
    def config(self) -> dict[str, Any]:
        fields = COMMON | {"model_type": self.model_type} | self.extra
        if not self.nested:
            return fields
        outer = {"model_type": self.model_type, "vocab_size": VOCAB_TOKENS, "text_config": fields}
        return outer | {"eos_token_id": EOS_TOKEN_ID}


MEMBERS = {
    "llama": Family(model_type="llama", extra={"attention_bias": True, "mlp_bias": True}),
    "mistral": Family(model_type="mistral", module="llama", extra={"sliding_window": 8}),
    "qwen2": Family(model_type="qwen2"),
    "qwen2_moe": Family(
        model_type="qwen2_moe", seed=1, extra=EXPERTS | {"shared_expert_intermediate_size": 40}
    ),
    "qwen3": Family(model_type="qwen3"),
    "qwen3_moe": Family(
        model_type="qwen3_moe",
        extra=EXPERTS | {"decoder_sparse_step": 2, "mlp_only_layers": [], "norm_topk_prob": True},
    ),
    "mixtral": Family(
        model_type="mixtral", extra={"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "olmo2": Family(model_type="olmo2"),
    "phi3": Family(model_type="phi3"),
    "smollm3": Family(model_type="smollm3", extra={"no_rope_layer_interval": 2}),
    "seed_oss": Family(model_type="seed_oss", extra={"attention_bias": True}),
    "starcoder2": Family(model_type="starcoder2", extra={"norm_epsilon": 1e-5}),
    "glm4": Family(model_type="glm4", extra={"attention_bias": True, "partial_rotary_factor": 0.5}),
    "ernie4_5": Family(model_type="ernie4_5", extra={"use_bias": True}),
}
"""One member of each family that can be drafted for, by ``model_type``."""

VARIANTS = {
    "tied": Family(model_type="qwen3", seed=4, extra={"tie_word_embeddings": True}),
    "quantised": Family(model_type="llama", quantised=True),
    "quantised and tied": Family(
        model_type="qwen2", quantised=True, seed=4, extra={"tie_word_embeddings": True}
    ),
    # mlx-lm gives these a window mask, or none, but always plain caches.
    "windows over plain caches": Family(
        model_type="smollm3",
        extra={"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    ),
    "use_sliding_window": Family(
        model_type="qwen2", extra={"use_sliding_window": True, "sliding_window": 8}
    ),
}
"""Members that differ in what the adapter looks at: head, embedding, storage, windows."""

WINDOW_TOKENS = 8
"""Shorter than two blocks: windows wrap all the time."""
SLIDING_LAYERS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW_TOKENS,
}
GEMMA4: dict[str, Any] = SLIDING_LAYERS | {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": VOCAB_TOKENS,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": False,
}
GATED_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
SHORT_CONV: dict[str, Any] = {
    "num_hidden_layers": 4,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
}
LATENT: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
GRANITE: dict[str, Any] = {
    "attention_bias": True,
    "mlp_bias": True,
    "attention_multiplier": 0.4,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}

HYBRIDS = {
    "llama with windows": Family(model_type="llama", extra=SLIDING_LAYERS),
    "ministral3": Family(
        model_type="ministral3",
        extra=SLIDING_LAYERS
        | {
            "rope_parameters": {
                "rope_theta": 1e4,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "olmo3": Family(model_type="olmo3", extra=SLIDING_LAYERS),
    "gpt_oss": Family(
        model_type="gpt_oss",
        extra=SLIDING_LAYERS
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_scaling": None},
    ),
    "granite": Family(model_type="granite", extra=GRANITE),
    "granitemoe": Family(
        model_type="granitemoe", extra=GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "cohere": Family(model_type="cohere", seed=46, extra={"logit_scale": 0.5, "use_qk_norm": True}),
    "cohere2": Family(
        model_type="cohere2",
        seed=10,
        extra={"sliding_window": WINDOW_TOKENS, "sliding_window_pattern": 2, "logit_scale": 0.5},
    ),
    "exaone4": Family(
        model_type="exaone4",
        extra=SLIDING_LAYERS | {"sliding_window_pattern": "LG", "rope_scaling": None},
    ),
    # As published: the experts in MXFP4, all else as it is.
    "gpt_oss in MXFP4": Family(
        model_type="gpt_oss",
        quantised=True,
        mode="mxfp4",
        extra=SLIDING_LAYERS
        | {
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_scaling": None,
        },
    ),
    "gemma3_text": Family(
        model_type="gemma3_text",
        extra={
            "sliding_window": WINDOW_TOKENS,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma3": Family(
        model_type="gemma3",
        nested=True,
        extra={
            "sliding_window": WINDOW_TOKENS,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma4_text": Family(model_type="gemma4_text", extra=GEMMA4),
    "gemma4": Family(model_type="gemma4", nested=True, extra=GEMMA4),
    "gemma4_unified": Family(
        model_type="gemma4_unified",
        module="gemma4",
        nested=True,
        extra=GEMMA4
        | {
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "muse_glimmer": Family(model_type="muse_glimmer", extra=SLIDING_LAYERS),
    "qwen3_next": Family(
        model_type="qwen3_next",
        extra=GATED_DELTA
        | EXPERTS
        | {
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [0],
            "partial_rotary_factor": 0.5,
        },
    ),
    "qwen3_5": Family(model_type="qwen3_5", nested=True, extra=GATED_DELTA),
    "qwen3_5_moe": Family(
        model_type="qwen3_5_moe",
        nested=True,
        extra=GATED_DELTA | EXPERTS | {"shared_expert_intermediate_size": 40},
    ),
    "lfm2": Family(
        model_type="lfm2",
        extra=SHORT_CONV
        | {
            "block_dim": SHAPE.hidden,
            "block_ff_dim": 48,
            "block_multiple_of": 8,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True,
        },
    ),
    "lfm2_moe": Family(
        model_type="lfm2_moe",
        extra=SHORT_CONV
        | EXPERTS
        | {"num_dense_layers": 1, "norm_topk_prob": True, "use_expert_bias": True},
    ),
    "deepseek_v3": Family(model_type="deepseek_v3", extra=LATENT),
    "kimi_k2": Family(model_type="kimi_k2", module="deepseek_v3", extra=LATENT),
    "kimi_k25": Family(model_type="kimi_k25", nested=True, extra=LATENT | {"q_lora_rank": None}),
}
"""Members whose caches, embedding or head need more than plain attention does."""

STOCK = {
    "mamba": Family(
        model_type="mamba",
        extra={
            "state_size": 4,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_rank": 4,
        },
    ),
    "gemma2": Family(
        model_type="gemma2",
        extra={
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
}
"""Models that decode plainly only."""


def make_member(folder: Path, family: Family) -> Path:
    """Write a random checkpoint of ``family`` with a tokenizer into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = family.config
    module = importlib.import_module(f"mlx_lm.models.{family.module or family.model_type}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    random = np.random.default_rng(family.seed)
    model.load_weights(
        [(name, _random(random, name, array.shape)) for name, array in _parameters(model)]
    )
    if family.quantised:
        config["quantization"] = {"group_size": 32, "bits": 4, "mode": family.mode}
        nn.quantize(model, 32, 4, mode=family.mode, class_predicate=family.quantises)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(_parameters(model)))
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def make_members_draft(folder: Path, family: Family) -> Path:
    """Write a draft that fits a member."""
    shape = replace(SHAPE, layers=family.extra.get("num_hidden_layers", SHAPE.layers))
    return make_draft(folder, shape, layers=1, block_tokens=6, target_layer_ids=LAYER_IDS)


def _parameters(model: nn.Module) -> list[tuple[str, mx.array]]:
    return tree_flatten(model.parameters())  # pyright: ignore[reportReturnType]


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> mx.array:
    """Unit gain or more, so that the continuation is varied; a steep head, so that ties are rare.

    Norms differ from 1 and biases from 0.
    """
    if name.endswith("A_log"):
        values = random.uniform(0, 1, shape)
    elif len(shape) == 1:
        around = ("norm" in name and name.endswith("weight")) or name.endswith(".D")
        values = random.normal(0, 0.2, shape) + around
    else:
        gain = 4.0 if name.startswith("lm_head") else 1.5
        fan_in = 4 if "embed" in name else shape[-1]
        values = random.normal(0, gain * fan_in**-0.5, shape)
    return mx.array(values.astype(np.float32))
