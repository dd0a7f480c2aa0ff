"""Short-convolution hybrids: most layers see a few tokens back, some attend, dense or with experts.

Features: layer outputs. Hooks: besides the taps every ``conv``, whose inputs a rollback needs.
Rollback: ``trim`` for attention; for a convolution the state from before the pass and a second run
over the rows that stay.
"""

from __future__ import annotations

import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache

from .trunk import TrunkTarget


class ShortConvTarget(TrunkTarget):
    """LFM2 and LFM2.5. The head is always the embedding."""

    families = frozenset({"lfm2", "lfm2_moe"})
    cache_kinds = frozenset({KVCache, ArraysCache})

    @property
    def hooked(self) -> list[nn.Module]:
        return [layer.conv for layer in self.layers if not layer.is_attention_layer]  # pyright: ignore[reportReturnType]
