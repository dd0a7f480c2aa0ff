"""Muse Glimmer: three sliding layers to each full one, normed embeddings, scaled logits.

Features: layer outputs. Hooks: none but the taps on layers. Rollback: as for sliding windows.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from .trunk import TrunkTarget


class MuseGlimmerTarget(TrunkTarget):
    """The text tower; its drafts repeat the logits' multiplier and cap in their own config."""

    families = frozenset({"muse_glimmer"})
    cache_kinds = frozenset({KVCache, RotatingKVCache})

    def embed(self, tokens: mx.array) -> mx.array:
        return mx.fast.rms_norm(self._trunk.embed_tokens(tokens), None, self._trunk.embed_eps)

    def logits(self, hidden: mx.array) -> mx.array:
        logits = self.head(hidden) * self._language.args.output_multiplier
        cap = self._language.args.final_logit_softcapping
        return mx.tanh(logits / cap) * cap
