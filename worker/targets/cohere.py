"""Command: logits that the model scales, and in later members three sliding layers to a full one.

Features: layer outputs. Hooks: none but the taps on layers. Rollback: as for sliding windows.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from .trunk import TrunkTarget


class CohereTarget(TrunkTarget):
    """Command R, Command R7B and Command A. The head is always the embedding."""

    families = frozenset({"cohere", "cohere2"})
    cache_kinds = frozenset({KVCache, RotatingKVCache})

    def logits(self, hidden: mx.array) -> mx.array:
        return self.head(hidden) * self._language.args.logit_scale
