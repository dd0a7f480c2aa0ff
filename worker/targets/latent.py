"""Multi-head latent attention: plain caches that hold compressed keys and values, with experts.

Features: layer outputs. Hooks: none but the taps on layers. Rollback: ``trim``. One row and several
rows take different ways through the attention, equal but for rounding.
"""

from __future__ import annotations

from mlx_lm.models.cache import KVCache

from .trunk import TrunkTarget


class LatentTarget(TrunkTarget):
    """DeepSeek V3 and Kimi K2, and Kimi K2.5 without its vision tower."""

    families = frozenset({"deepseek_v3", "kimi_k2", "kimi_k25"})
    cache_kinds = frozenset({KVCache})
