"""Small snapshots with known content, for tests of where they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from dflashd.worker.cache.disk import DiskSettings
from dflashd.worker.cache.identity import CacheIdentity, Fingerprint
from dflashd.worker.cache.layer_state import LayerState
from dflashd.worker.cache.snapshot import Snapshot

FINGERPRINT = Fingerprint(
    target_config="c",
    draft_config=None,
    quantisation="none",
    dtype="float32",
    layer_ids=(),
    draft_window=None,
    template="t",
    kv_quantisation="none",
    chunk_tokens=512,
    compute="mlx",
)


def identity(name: str = "m", digest: str = "a" * 64) -> CacheIdentity:
    return CacheIdentity(name=name, target_digest=digest, draft_digest=None)


def settings(root: Path, **changes: object) -> DiskSettings:
    values: dict[str, object] = {"root": root, "model_bytes": 10**9, "root_bytes": 10**9}
    return DiskSettings(**(values | changes))  # type: ignore[arg-type]


def kv(rows: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> LayerState:
    arrays = tuple(
        mx.random.normal((1, 2, rows, 8), key=mx.random.key(seed + n)).astype(dtype)
        for n in range(2)
    )
    return LayerState(kind="KVCache", numbers=(), arrays=arrays, trimmable=True, rows=rows)


def snapshot(
    tokens: Sequence[int] | int,
    *,
    dtype: mx.Dtype = mx.float32,
    draft: bool = False,
    logits: int | None = None,
) -> Snapshot:
    """State behind ``tokens`` (or so many different ones)."""
    listed = list(range(tokens)) if isinstance(tokens, int) else list(tokens)
    made = Snapshot(
        tokens=np.array(listed, np.int32),
        target=(kv(len(listed), dtype), kv(len(listed), dtype, 7)),
        draft=(kv(len(listed), dtype, 9),) if draft else None,
        logits={} if logits is None else {logits: mx.arange(30).astype(dtype)},
        aligned_tokens=0,
    )
    made.evaluate()
    return made


def same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots are the same, bit for bit."""
    pairs = list(zip(one.arrays, other.arrays, strict=True))
    return (
        np.array_equal(one.tokens, other.tokens)
        and [(a.kind, a.numbers, a.rows, a.trimmable) for a in one.target]
        == [(a.kind, a.numbers, a.rows, a.trimmable) for a in other.target]
        and list(one.logits) == list(other.logits)
        and all(a.dtype == b.dtype and bits(a) == bits(b) for a, b in pairs)
    )


def bits(array: mx.array) -> bytes:
    """An array's content as bytes; zeros of different sign differ, NaNs do not hide."""
    return np.array(mx.contiguous(array).view(mx.uint8)).tobytes()
