"""Memory that mlx's arrays hold, at rest."""

from __future__ import annotations

import gc

import mlx.core as mx


def held_bytes() -> int:
    """Bytes of arrays that somebody refers to.

    Garbage is collected, and mlx's own thread has let go of what it computed last: its tasks hold
    their arrays for a moment longer than who waited for the result.
    """
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()
