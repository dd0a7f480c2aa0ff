"""The daemon's own numbers as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...protocol.messages import SnapshotBody


@final
class SnapshotCollector(Collector):
    """One snapshot, to be rendered once."""

    def __init__(self, snapshot: SnapshotBody) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        yield from _daemon(self._snapshot)
        yield from _models(self._snapshot)
        yield from _workers(self._snapshot)


def registry_of(snapshot: SnapshotBody) -> CollectorRegistry:
    """A registry of one snapshot's numbers."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    return registry


def _daemon(snapshot: SnapshotBody) -> Iterator[Metric]:
    yield GaugeMetricFamily("dflashd_uptime_seconds", "Since its start.", snapshot.uptime_s)
    serving = float(snapshot.state == "serving")
    yield GaugeMetricFamily("dflashd_serving", "0 while it stops.", serving)
    counters = CounterMetricFamily(
        "dflashd_supervisor", "The supervisor's own counters.", labels=["name"]
    )
    for name, value in _numbers(snapshot.counters):
        counters.add_metric([name], value)
    yield counters


def _models(snapshot: SnapshotBody) -> Iterator[Metric]:
    state = GaugeMetricFamily("dflashd_model_state", "1 for its state.", labels=["model", "state"])
    queued = GaugeMetricFamily("dflashd_model_queued", "Requests that wait.", labels=["model"])
    active = GaugeMetricFamily("dflashd_model_active", "Requests that run.", labels=["model"])
    weights = GaugeMetricFamily("dflashd_model_weights_bytes", "When loaded.", labels=["model"])
    completed = CounterMetricFamily("dflashd_model_completed", "Requests done.", labels=["model"])
    loads = CounterMetricFamily("dflashd_model_loads", "Times loaded.", labels=["model"])
    unloads = CounterMetricFamily("dflashd_model_unloads", "Times unloaded.", labels=["model"])
    for model in snapshot.models:
        state.add_metric([model.name, model.state], 1)
        queued.add_metric([model.name], model.queued)
        active.add_metric([model.name], model.active)
        weights.add_metric([model.name], model.loaded.memory_bytes if model.loaded else 0)
        completed.add_metric([model.name], model.completed)
        loads.add_metric([model.name], model.loads)
        unloads.add_metric([model.name], model.unloads)
    yield from (state, queued, active, weights, completed, loads, unloads)


def _workers(snapshot: SnapshotBody) -> Iterator[Metric]:
    memory = GaugeMetricFamily("dflashd_worker_memory_bytes", "It holds.", labels=["worker"])
    restarts = CounterMetricFamily("dflashd_worker_restarts", "After crashes.", labels=["worker"])
    up = GaugeMetricFamily("dflashd_worker_up", "1 while its process runs.", labels=["worker"])
    for worker in snapshot.workers:
        memory.add_metric([worker.name], worker.memory_bytes)
        restarts.add_metric([worker.name], worker.restarts)
        up.add_metric([worker.name], worker.pid is not None)
    yield from (memory, restarts, up)


def _numbers(counters: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in counters.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}_")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)
