"""Memory of this process: what it holds, how to give it back, and when it ran out.

Imports mlx: only for processes that prepared the BLAS.
"""

from __future__ import annotations

import ctypes
import gc

import mlx.core as mx
import psutil

_PHRASES = (
    "out of memory",
    "insufficient memory",
    "unable to allocate",
    "[malloc",
    "::malloc]",
    "bad_alloc",
    "cudaerrormemoryallocation",
)
"""How mlx and its backends say that an allocation failed, in lower case."""

SPARE_LIMIT_BYTES = 2**30
"""Of buffers that mlx keeps for reuse. Enough for the passes of a prompt, which need the same sizes
again and again; a GPU's allocator would keep nearly all memory, of which others have a share."""

_process = psutil.Process()
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Only where the C library is glibc."""


def held_bytes() -> int:
    """Memory this process holds, buffers that mlx keeps for reuse included.

    The larger of what the system and what mlx count: GPU memory may be missing in the former.
    """
    return max(_process.memory_info().rss, mx.get_active_memory() + mx.get_cache_memory())


def limit_spare(limit_bytes: int = SPARE_LIMIT_BYTES) -> None:
    """Let mlx keep no more than that for reuse, in the whole process; a lower limit stays."""
    before = mx.set_cache_limit(limit_bytes)
    mx.set_cache_limit(min(before, limit_bytes))


def keep_resident() -> None:
    """Have Metal keep what is used in memory, up to what the device recommends, as mlx-lm does for
    its generations: else macOS may page out a large model's weights. Elsewhere nothing.
    """
    recommended_bytes = mx.device_info().get("max_recommended_working_set_size")
    if recommended_bytes is not None:
        mx.set_wired_limit(int(recommended_bytes))


def reclaim() -> None:
    """Collect what is unreachable and return spare memory to the system."""
    # Each layer that mlx makes draws random weights, which are never computed; the key they would
    # come from is a graph that grows with every draw. Measured: 100 kB for each load of a tiny
    # model, for ever. The state is this thread's own.
    mx.eval(mx.random.state)
    gc.collect()
    mx.clear_cache()
    if _trim is not None:
        # glibc keeps freed blocks of up to 32 MB each: measured, a whole unloaded model.
        _trim(0)


def ran_out(error: BaseException) -> bool:
    """Whether ``error`` is an allocation that failed."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(phrase in text for phrase in _PHRASES)
