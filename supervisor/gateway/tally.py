"""What the gateway itself counts: requests by path and status, and their times."""

from __future__ import annotations

from typing import final

from prometheus_client import CollectorRegistry, Counter, Histogram

_TIMES_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)


@final
class Tally:
    """Counters of this process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "dflashd_http_requests",
            "Requests answered.",
            ["path", "status"],
            registry=self.registry,
        )
        self._times = Histogram(
            "dflashd_http_request_seconds",
            "From the end of the headers to the end of the answer.",
            ["path"],
            buckets=_TIMES_S,
            registry=self.registry,
        )

    def answered(self, path: str, status: int, took_s: float) -> None:
        """One request is over."""
        self._requests.labels(path, str(status)).inc()
        self._times.labels(path).observe(took_s)
