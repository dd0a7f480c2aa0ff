"""The core's whole state as one wire value."""

from __future__ import annotations

from msgspec import Struct

from ...protocol.messages import ModelStatus, SnapshotBody, WorkerStatus
from . import accounts
from .life import OUTSIDE, Phase, Residency, WorkerState
from .records import SENTENCE_CHARACTERS, Model, Worker
from .state import State

MODEL_WORDS = (
    *("stopped", "waiting", "loading", "ready", "busy", "draining", "unloading"),
    *("lost", "backoff", "fatal"),
)
"""All that :func:`word` may answer."""


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
        workers=tuple(worker_status(s, w, now) for w in s.workers.values()),
        models=tuple(model_status(s, m, now) for m in s.models.values()),
        counters=dict(s.counters),
        pool_bytes=s.pool_bytes,
        reserved_bytes=accounts.holdings(s, now).reserved_bytes(),
    )


def worker_status(s: State, worker: Worker, now: float) -> WorkerStatus:
    """One worker's row."""
    retry_at = worker.deadline if worker.state is WorkerState.backoff else None
    return WorkerStatus(
        name=worker.name,
        state=worker.state,
        epoch=worker.epoch,
        pid=worker.pid,
        models=worker.models,
        active=len(worker.active),
        memory_bytes=worker.memory_bytes,
        saved_bytes=sum(model.shared_bytes for model in s.models_of(worker)),
        restarts=worker.restarts,
        retry_in_s=None if retry_at is None else max(0.0, retry_at - now),
        reason=worker.reason[:SENTENCE_CHARACTERS],
        last_lines=worker.last_lines,
        group=worker.home.name if worker.home.kind == "group" else None,
    )


def model_status(s: State, model: Model, now: float) -> ModelStatus:
    """One model's row."""
    worker = s.worker_of(model)
    live = (r for r in worker.active.values() if r.phase is not Phase.ended)
    active = sum(request.model == model.name for request in live)
    retry_at = model.deadline if model.state is Residency.backoff else None
    return ModelStatus(
        name=model.name,
        target=model.settings.target,
        draft=model.settings.draft,
        worker=model.worker,
        state=word(model, worker, active),
        queued=len(model.queue),
        active=active,
        completed=model.completed,
        loads=model.loads,
        unloads=model.unloads,
        stage=model.stage,
        stage_done=model.stage_done,
        stage_total=model.stage_total,
        loaded=model.loaded,
        group=model.settings.group,
        pinned=model.pinned,
        reason=(model.waits or model.reason or model.apart)[:SENTENCE_CHARACTERS],
        retry_in_s=None if retry_at is None else max(0.0, retry_at - now),
        preload=model.settings.preload,
        pid=None if model.state in OUTSIDE else worker.pid,
    )


def word(model: Model, worker: Worker, active: int) -> str:
    """A model's own state in a word; that of a failed worker is its models' too."""
    if model.state is Residency.absent and model.waits:
        return "waiting"
    if model.state is Residency.absent:
        failed = worker.state in (WorkerState.lost, WorkerState.backoff, WorkerState.fatal)
        return worker.state if failed else "stopped"
    if model.state is Residency.ready:
        return "busy" if active else "ready"
    return model.state
