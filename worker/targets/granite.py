"""Granite: full attention over plain KV caches, embeddings multiplied and logits divided.

Features: layer outputs. Hooks: none but the taps on layers. Rollback: ``trim``.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .trunk import TrunkTarget


class GraniteTarget(TrunkTarget):
    """Granite 3 and 4 without recurrent layers, dense or with experts."""

    families = frozenset({"granite", "granitemoe"})
    cache_kinds = frozenset({KVCache})

    def embed(self, tokens: mx.array) -> mx.array:
        return self._trunk.embed_tokens(tokens) * self._trunk.embedding_multiplier

    def logits(self, hidden: mx.array) -> mx.array:
        return self.head(hidden) / self._language.logits_scaling
