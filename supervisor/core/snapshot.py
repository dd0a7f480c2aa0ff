"""The core's whole state as one wire value."""

from __future__ import annotations

from msgspec import Struct

from ...protocol.messages import ModelStatus, SnapshotBody, WorkerStatus
from .records import SENTENCE_CHARACTERS, Model, Phase, Worker, WorkerState
from .state import State


class Identity(Struct, frozen=True, kw_only=True):
    """Who this daemon is; ``started_at`` on the core's clock."""

    instance: str
    version: str
    pid: int
    started_at: float


def snapshot(s: State, identity: Identity, now: float) -> SnapshotBody:
    """All of it; looking changes nothing."""
    return SnapshotBody(
        instance=identity.instance,
        version=identity.version,
        pid=identity.pid,
        uptime_s=max(0.0, now - identity.started_at),
        state="draining" if s.shutdown_level else "serving",
        workers=tuple(worker_status(w, now) for w in s.workers.values()),
        models=tuple(model_status(s, m) for m in s.models.values()),
        counters=dict(s.counters),
    )


def worker_status(worker: Worker, now: float) -> WorkerStatus:
    """One worker's row."""
    retry_in_s = None
    if worker.state is WorkerState.backoff and worker.deadline is not None:
        retry_in_s = max(0.0, worker.deadline - now)
    return WorkerStatus(
        name=worker.name,
        state=worker.state,
        epoch=worker.epoch,
        pid=worker.pid,
        models=worker.models,
        active=len(worker.active),
        memory_bytes=worker.memory_bytes,
        restarts=worker.restarts,
        retry_in_s=retry_in_s,
        reason=worker.reason[:SENTENCE_CHARACTERS],
        last_lines=worker.last_lines,
    )


def model_status(s: State, model: Model) -> ModelStatus:
    """One model's row."""
    worker = s.workers[model.worker]
    live = (r for r in worker.active.values() if r.phase is not Phase.ended)
    return ModelStatus(
        name=model.name,
        target=model.settings.target,
        draft=model.settings.draft,
        worker=model.worker,
        state=worker.state,
        queued=len(model.queue),
        active=sum(request.model == model.name for request in live),
        completed=model.completed,
        loads=model.loads,
        unloads=model.unloads,
        stage=model.stage,
        stage_done=model.stage_done,
        stage_total=model.stage_total,
        loaded=model.loaded,
    )
