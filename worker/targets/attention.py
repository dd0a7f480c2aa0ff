"""Targets whose every layer is full attention over a plain KV cache.

Features are layer outputs, hooks are per instance (``features.py``), rollback is ``trim``.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from .target import Caches

FAMILIES = frozenset(
    {
        "llama",
        "mistral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "mixtral",
        "olmo2",
        "phi3",
        "smollm3",
        "seed_oss",
        "starcoder2",
        "glm4",
        "ernie4_5",
    }
)
"""``model_type`` values whose mlx-lm model is a trunk ``model`` and a bare linear head."""


class AttentionTarget:
    """Plain KV attention: trunk, head and embedding are used apart, hooks on layer instances."""

    backend = "attention"
    supports_drafts = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._trunk = model.model

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether the model really is of this kind: a family member may slide its window."""
        return (
            hasattr(model, "model")
            and hasattr(model.model, "embed_tokens")
            and all(type(cache) is KVCache for cache in make_prompt_cache(model))
        )

    def make_caches(self) -> Caches:
        return make_prompt_cache(self._model)

    def prefill(self, tokens: mx.array, caches: Caches) -> mx.array:
        return self.head(self._trunk(tokens, cache=caches)[:, -1:])

    def verify(self, tokens: mx.array, caches: Caches) -> mx.array:
        return self._model(tokens, cache=caches)

    def rollback(self, caches: Caches, rows: int) -> None:
        for cache in caches:
            cache.trim(rows)

    @property
    def layers(self) -> list[nn.Module]:
        return self._model.layers

    def embed(self, tokens: mx.array) -> mx.array:
        return self._trunk.embed_tokens(tokens)

    def head(self, hidden: mx.array) -> mx.array:
        if self._untied:
            return self._model.lm_head(hidden)
        return self._trunk.embed_tokens.as_linear(hidden)

    @property
    def head_weight(self) -> mx.array | None:
        layer = self._model.lm_head if self._untied else self._trunk.embed_tokens
        dense = type(layer) in (nn.Linear, nn.Embedding) and "bias" not in layer
        return layer.weight if dense else None

    @property
    def _untied(self) -> bool:
        return "lm_head" in self._model
