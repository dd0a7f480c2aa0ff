"""Gemma 3 and 4: sliding windows in most layers, and embeddings that the model scales.

Features: layer outputs (Gemma 4's layers hand on keys, values and offset behind them). Hooks: none
but the taps on layers. Rollback: as for sliding windows; Gemma 4's last layers share the caches of
earlier ones, so there are fewer caches than layers.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from .trunk import TrunkTarget


class Gemma3Target(TrunkTarget):
    """Gemma 3 with or without its vision tower, which is never loaded."""

    families = frozenset({"gemma3", "gemma3_text"})
    cache_kinds = frozenset({KVCache, RotatingKVCache})

    def embed(self, tokens: mx.array) -> mx.array:
        embedded = self._trunk.embed_tokens(tokens)
        # Gemma was trained with this factor rounded to bfloat16.
        factor = mx.array(self._trunk.args.hidden_size**0.5, mx.bfloat16)
        return embedded * factor.astype(embedded.dtype)


class Gemma4Target(TrunkTarget):
    """Gemma 4 in all sizes: per-layer inputs, shared keys and values, experts."""

    families = frozenset({"gemma4", "gemma4_text", "gemma4_unified"})
    cache_kinds = frozenset({KVCache, RotatingKVCache})

    def embed(self, tokens: mx.array) -> mx.array:
        return self._trunk.embed_tokens(tokens) * self._trunk.embed_scale

    def logits(self, hidden: mx.array) -> mx.array:
        logits = self.head(hidden)
        cap = self._language.final_logit_softcapping
        return logits if cap is None else mx.tanh(logits / cap) * cap
