"""What the page shows, as JSON. Pure."""

from __future__ import annotations

from typing import Any

from ...protocol.messages import ModelStatus, SnapshotBody, WorkerStatus


def page_state(snapshot: SnapshotBody, pool_bytes: int) -> dict[str, Any]:
    """``pool_bytes``: the memory that models may fill."""
    workers = {worker.name: worker for worker in snapshot.workers}
    return {
        "version": snapshot.version,
        "state": snapshot.state,
        "uptime_s": snapshot.uptime_s,
        "pool_bytes": pool_bytes,
        "workers": [
            {
                "name": worker.name,
                "state": worker.state,
                "memory_bytes": worker.memory_bytes,
                "restarts": worker.restarts,
                "reason": worker.reason,
            }
            for worker in snapshot.workers
        ],
        "models": [
            {
                **_model(model),
                "reason": model.reason or _worker_reason(workers, model),
            }
            for model in snapshot.models
        ],
        "events": [],
    }


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
        "tokens": None,
        "chunks": None,
        "progress_ratio": model.stage_done / model.stage_total if loading else None,
    }
