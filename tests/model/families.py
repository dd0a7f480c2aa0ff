"""Tiny random checkpoints of every family, made with mlx-lm's own model classes."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    seed: int = 0
    """One whose greedy text is varied and free of near ties."""

    @property
    def config(self) -> dict[str, Any]:
        return COMMON | {"model_type": self.model_type} | self.extra


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

SLIDING = Family(
    model_type="llama",
    extra={"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
)
"""A member whose mlx-lm model has a rotating cache: it cannot be rolled back by trimming."""

STOCK = {
    "sliding": SLIDING,
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
        config["quantization"] = {"group_size": 32, "bits": 4}
        nn.quantize(
            model, 32, 4, class_predicate=lambda _, m: hasattr(m, "to_quantized") and _fits(m)
        )
    mx.save_safetensors(str(folder / "model.safetensors"), dict(_parameters(model)))
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def make_members_draft(folder: Path) -> Path:
    """Write a draft that fits every member."""
    return make_draft(folder, SHAPE, layers=1, block_tokens=6, target_layer_ids=LAYER_IDS)


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


def _fits(module: Any) -> bool:
    return module.weight.shape[-1] % 32 == 0
