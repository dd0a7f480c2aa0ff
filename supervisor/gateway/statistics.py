"""Our own statistics, as the one vendor field ``dflashd`` tells them. Pure."""

from __future__ import annotations

from typing import Any

from ...protocol.messages import DoneBody

_TOLD = (
    "engine",
    "engine_reason",
    "digest",
    "block_tokens",
    "cycles",
    "acceptance_length_tokens",
    "cache_hit",
    "cache_miss_reason",
    "queued_ms",
    "load_ms",
    "ttft_ms",
    "prefill_ms",
    "decode_ms",
)


def statistics(stats: DoneBody) -> dict[str, Any]:
    """What one generation tells about itself beyond what the dialects have fields for."""
    return {name: getattr(stats, name) for name in _TOLD}
