"""What is measured: counts and fixed buckets, cheap enough for every chunk."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from .records import Request

BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
"""Upper bounds of every histogram's buckets; one more bucket holds what is above them all."""


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True, kw_only=True, eq=False)
class ModelMetrics:
    """What is measured of one model since the daemon started."""

    chunks: int = 0
    tokens: int = 0
    cancels: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    queue_wait: Histogram = field(default_factory=Histogram)
    cold_start: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    inter_chunk: Histogram = field(default_factory=Histogram)
    drain: Histogram = field(default_factory=Histogram)
    failures: Counter[str] = field(default_factory=Counter[str])
    """Failed loads by error code."""
    evictions: Counter[str] = field(default_factory=Counter[str])
    """By cause, a word of a closed set: it becomes a label."""

    def chunk(self, request: Request, tokens: int, now: float) -> None:
        """Another chunk of ``request`` came; ``next_seq`` is still its own number."""
        self.chunks += 1
        self.tokens += tokens
        if request.next_seq:
            self.inter_chunk.observe(now - request.chunk_at)
        else:
            self.first_token.observe(now - request.accepted_at)
        request.chunk_at = now


@dataclass(slots=True, kw_only=True, eq=False)
class Metrics:
    """Everything measured that is not a table's own length."""

    models: defaultdict[str, ModelMetrics] = field(
        default_factory=lambda: defaultdict[str, ModelMetrics](ModelMetrics)
    )
    refused: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Requests that were never accepted, by model ("": not configured) and code."""
    restarts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By worker and cause."""
