"""All metrics of the core as one wire value: stable names, units in them, labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from ...protocol.messages import MetricFamily, MetricSample, MetricsBody
from . import accounts
from .life import Phase, WorkerState
from .metrics import BOUNDS_S, Histogram, ModelMetrics
from .snapshot import MODEL_WORDS, Identity, model_status
from .state import State

Samples = Iterable[tuple[Mapping[str, str], float]]


def metrics_page(s: State, identity: Identity, now: float) -> MetricsBody:
    """All of it; looking changes nothing."""
    models = {name: s.metrics.models.get(name) or ModelMetrics() for name in s.models}
    return MetricsBody(
        families=(
            gauge("dflashd_uptime_seconds", "Since the daemon started.", now - identity.started_at),
            *gauges(s, now),
            *pool(s, now),
            *counters(s, models),
            *histograms(models),
        )
    )


def gauges(s: State, now: float) -> Iterable[MetricFamily]:
    """How things stand."""
    states = Counter(str(worker.state) for worker in s.workers.values())
    statuses = [model_status(s, model, now) for model in s.models.values()]
    model_states = Counter(status.state for status in statuses)
    yield gauges_by("dflashd_workers", "Workers in each state.", "state", states, WorkerState)
    yield gauges_by("dflashd_models", "Models in each state.", "state", model_states, MODEL_WORDS)
    queued = {status.name: status.queued for status in statuses}
    yield gauges_by("dflashd_queued_requests", "Requests that wait.", "model", queued)
    active = {status.name: status.active for status in statuses}
    yield gauges_by("dflashd_active_requests", "Requests that are computed.", "model", active)
    yield gauge("dflashd_queued_bytes", "Prompts of all that wait.", s.queued_bytes)
    memory = {worker.name: worker.memory_bytes for worker in s.workers.values()}
    help = "Memory as each worker reports it."
    yield gauges_by("dflashd_worker_memory_bytes", help, "worker", memory)
    stuck = sum(r.phase is Phase.running and not r.has_credit for r in s.requests.values())
    yield gauge("dflashd_requests_without_credit", "Requests whose client does not read.", stuck)


def pool(s: State, now: float) -> Iterable[MetricFamily]:
    """The memory all models share."""
    reserved = accounts.holdings(s, now).reserved_bytes()
    measured = sum(worker.memory_bytes for worker in s.workers.values())
    yield gauge("dflashd_pool_budget_bytes", "Memory that models may have.", s.pool_bytes)
    yield gauge("dflashd_pool_reserved_bytes", "What admission counts.", reserved)
    yield gauge("dflashd_pool_measured_bytes", "What all workers report.", measured)


def counters(s: State, models: Mapping[str, ModelMetrics]) -> Iterable[MetricFamily]:
    """How often, since the daemon started."""
    ends = [({"model": m, "code": c}, n) for m, of in models.items() for c, n in of.ends.items()]
    refused = [({"model": m, "code": c}, n) for (m, c), n in s.metrics.refused.items()]
    yield counter("dflashd_requests_total", "Accepted requests by how they ended.", ends)
    yield counter("dflashd_refused_total", "Requests that were not accepted.", refused)
    rows: tuple[tuple[str, str, Callable[[ModelMetrics], int]], ...] = (
        ("chunks", "Chunks passed on.", lambda of: of.chunks),
        ("tokens", "Tokens passed on.", lambda of: of.tokens),
        ("cancels", "Requests cancelled by clients.", lambda of: of.cancels),
    )
    for name, help, count in rows:
        samples = [({"model": m}, count(of)) for m, of in models.items()]
        yield counter(f"dflashd_{name}_total", help, samples)
    loads = [({"model": model.name}, model.loads) for model in s.models.values()]
    yield counter("dflashd_loads_total", "Loads that ended in a ready model.", loads)
    restarts = [({"worker": w, "cause": c}, n) for (w, c), n in s.metrics.restarts.items()]
    yield counter("dflashd_restarts_total", "Restarts of a worker, by what failed.", restarts)
    failures = [
        ({"model": m, "code": c}, n) for m, of in models.items() for c, n in of.failures.items()
    ]
    yield counter("dflashd_load_failures_total", "Loads that a worker could not do.", failures)
    evictions = [
        ({"model": m, "cause": c}, n) for m, of in models.items() for c, n in of.evictions.items()
    ]
    yield counter("dflashd_evictions_total", "Models unloaded to make room.", evictions)


def histograms(models: Mapping[str, ModelMetrics]) -> Iterable[MetricFamily]:
    """How long things took."""
    rows: tuple[tuple[str, str, Callable[[ModelMetrics], Histogram]], ...] = (
        ("queue_wait", "From acceptance to the lease, loading included.", lambda m: m.queue_wait),
        ("cold_start", "From the decision to load to ready.", lambda m: m.cold_start),
        ("time_to_first_token", "From acceptance to the first chunk.", lambda m: m.first_token),
        ("inter_chunk", "Between two chunks of a request.", lambda m: m.inter_chunk),
        ("drain", "From the decision to unload to no request left.", lambda m: m.drain),
    )
    for name, help, of in rows:
        samples = {model: of(measured) for model, measured in models.items()}
        yield histogram(f"dflashd_{name}_seconds", help, "model", samples)


def gauge(name: str, help: str, value: float) -> MetricFamily:
    """A number without labels."""
    return MetricFamily(name=name, kind="gauge", help=help, samples=(MetricSample(value=value),))


def gauges_by(
    name: str,
    help: str,
    label: str,
    values: Mapping[str, float],
    labels: Iterable[str] | None = None,
) -> MetricFamily:
    """A number for each of ``labels`` (default: those that have one)."""
    samples = tuple(
        MetricSample(labels={label: str(value)}, value=values.get(str(value), 0))
        for value in (values if labels is None else labels)
    )
    return MetricFamily(name=name, kind="gauge", help=help, samples=samples)


def counter(name: str, help: str, values: Samples) -> MetricFamily:
    """Counts with their labels."""
    samples = tuple(MetricSample(labels=dict(labels), value=n) for labels, n in values)
    return MetricFamily(name=name, kind="counter", help=help, samples=samples)


def histogram(name: str, help: str, label: str, values: Mapping[str, Histogram]) -> MetricFamily:
    """Durations for each label's value; ``label`` "" is for a single one without."""
    kind: Literal["histogram"] = "histogram"
    samples = tuple(
        MetricSample(labels={label: key} if label else {}, value=of.sum_s, counts=tuple(of.counts))
        for key, of in values.items()
    )
    return MetricFamily(name=name, kind=kind, help=help, samples=samples, bounds=BOUNDS_S)
