"""Sliding windows in some layers, full attention in the others.

Features: layer outputs. Hooks: none but the taps on layers. Rollback: ``trim`` where the cache is
plain, the tail of the buffer where it rotates, wrapped or not.
"""

from __future__ import annotations

from mlx_lm.models.cache import KVCache, RotatingKVCache

from .trunk import TrunkTarget


class SlidingTarget(TrunkTarget):
    """Members whose layers slide, of families that need nothing else."""

    families = frozenset({"llama", "mistral", "ministral3", "gpt_oss", "olmo3", "exaone4"})
    cache_kinds = frozenset({KVCache, RotatingKVCache})
