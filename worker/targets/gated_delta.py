"""GatedDeltaNet hybrids: three recurrent layers to each attention layer, dense or with experts.

Features: layer outputs. Hooks: besides the taps every ``linear_attn``, whose inputs a rollback
needs. Rollback: ``trim`` for attention; for a recurrent layer the states from before the pass and
a second run over the rows that stay.
"""

from __future__ import annotations

import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache

from .trunk import TrunkTarget


class GatedDeltaTarget(TrunkTarget):
    """Qwen3-Next, and Qwen3.5 and what came after it."""

    families = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe"})
    cache_kinds = frozenset({KVCache, ArraysCache})

    @property
    def hooked(self) -> list[nn.Module]:
        return [layer.linear_attn for layer in self.layers if layer.is_linear]  # pyright: ignore[reportReturnType]
