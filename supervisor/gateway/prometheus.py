"""The daemon's own metrics, and the state of each model, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ...protocol.messages import MetricFamily, MetricsBody, SnapshotBody


def registry_of(snapshot: SnapshotBody, metrics: MetricsBody) -> CollectorRegistry:
    """A registry of one moment's numbers, to be rendered once."""
    registry = CollectorRegistry()
    registry.register(MomentCollector(snapshot, metrics))
    return registry


@final
class MomentCollector(Collector):
    """One moment's numbers."""

    def __init__(self, snapshot: SnapshotBody, metrics: MetricsBody) -> None:
        self._snapshot = snapshot
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        yield from (_rendered(family) for family in self._metrics.families)
        states = GaugeMetricFamily(
            "dflashd_model_state", "1 for the state a model is in.", labels=["model", "state"]
        )
        for model in self._snapshot.models:
            states.add_metric([model.name, model.state], 1)
        yield states


def _rendered(family: MetricFamily) -> Metric:
    labels = list(family.samples[0].labels) if family.samples else []
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=labels)
        names = [*(f"{bound:g}" for bound in family.bounds), "+Inf"]
        for sample in family.samples:
            buckets = list(zip(names, accumulate(sample.counts), strict=True))
            histogram.add_metric(list(sample.labels.values()), buckets, sum_value=sample.value)
        return histogram
    kind = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    metric = kind(family.name, family.help, labels=labels)
    for sample in family.samples:
        metric.add_metric(list(sample.labels.values()), sample.value)
    return metric
