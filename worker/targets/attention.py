"""Full attention over plain KV caches: the llama shape, dense and mixture-of-experts.

Features: layer outputs. Hooks: none but the taps on layers. Rollback: ``trim``.
"""

from __future__ import annotations

from mlx_lm.models.cache import KVCache

from .trunk import TrunkTarget


class AttentionTarget(TrunkTarget):
    """Every layer attends to all that came before."""

    families = frozenset(
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
    cache_kinds = frozenset({KVCache})
