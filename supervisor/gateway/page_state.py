"""What the page shows, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...protocol.messages import (
    EventBody,
    MetricsBody,
    ModelStatus,
    SnapshotBody,
    WorkerStatus,
)
from ..logs.log import line_of_event
from .health import troubles


def page_state(
    snapshot: SnapshotBody,
    metrics: MetricsBody,
    events: Sequence[EventBody],
) -> dict[str, Any]:
    """All of it."""
    workers = {worker.name: worker for worker in snapshot.workers}
    tokens = metrics.by_model("dflashd_tokens_total")
    chunks = metrics.by_model("dflashd_chunks_total")
    return {
        "version": snapshot.version,
        "state": snapshot.state,
        "uptime_s": snapshot.uptime_s,
        "pool_bytes": snapshot.pool_bytes,
        "problems": troubles(snapshot),
        "workers": [_worker(worker) for worker in snapshot.workers],
        "models": [
            {
                **_model(model),
                "tokens": tokens.get(model.name, 0),
                "chunks": chunks.get(model.name, 0),
                "reason": model.reason or _worker_reason(workers, model),
            }
            for model in snapshot.models
        ],
        "events": [
            {"at_unix_s": event.at_unix_s, "text": line_of_event(event)}
            for event in reversed(events)
        ],
    }


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    return {"name": worker.name, "state": worker.state, "memory_bytes": worker.memory_bytes}


def _worker_reason(workers: dict[str, WorkerStatus], model: ModelStatus) -> str:
    return workers[model.worker].reason if model.worker in workers else ""


def _model(model: ModelStatus) -> dict[str, Any]:
    loading = model.state == "loading" and model.stage_total > 0
    return {
        "name": model.name,
        "state": model.state,
        "drafted": model.draft is not None,
        "queued": model.queued,
        "active": model.active,
        "completed": model.completed,
        "progress_ratio": model.stage_done / model.stage_total if loading else None,
    }
