"""A model's life in its worker: load, readiness, unload. One load at a time in one worker."""

from __future__ import annotations

import msgspec
from msgspec import structs

from ...protocol.messages import (
    Event,
    Load,
    LoadBody,
    Loaded,
    LoadedBody,
    Progress,
    Unload,
    Unloaded,
)
from . import failure, pace, stopping, vacancy
from .life import OUTSIDE, Cause, Residency
from .records import Model, Worker
from .state import State

PROGRESS_TOLD_S = 0.1
"""Waiting clients hear of progress inside one stage at most this often."""


def begin(s: State, model: Model, now: float) -> None:
    """Give an absent model its place: it loads as soon as its worker can."""
    model.began_at = now
    model.reason = ""
    s.place(model, Residency.loading)


def order_next(s: State, worker: Worker, now: float) -> None:
    """Have a worker load the next model, if it loads none now."""
    loading = [m for m in s.models_of(worker) if m.state is Residency.loading]
    if not loading or any(model.ordered for model in s.models_of(worker)):
        return
    model = min(loading, key=lambda model: model.began_at)
    model.ordered = True
    model.deadline = now + s.limits.load_stall_s
    s.order(worker, Load(epoch=worker.epoch, model=model.name), load_body(model))
    s.note("load_began", worker=worker.name, epoch=worker.epoch, model=model.name)


def load_body(model: Model) -> LoadBody:
    """What is sent to the worker: with the dtype that memory was reckoned in."""
    body = model.settings.load_body
    if model.facts is None or body.dtype != "auto":
        return body
    return structs.replace(body, dtype=model.facts.dtype)


def progressed(s: State, worker: Worker, header: Progress, now: float) -> None:
    """A load moved: feed its stall timer and tell those who wait."""
    model = spoken_of(s, worker, header.model, Residency.loading)
    if model is None:
        return
    place = (model.stage, model.stage_done)
    changed_stage = header.stage != model.stage
    model.stage = header.stage
    model.stage_done = header.done
    model.stage_total = header.total
    if place == (header.stage, header.done):
        return
    model.deadline = now + s.limits.load_stall_s
    worker.moved_at = now
    complete = header.done == header.total
    if not (changed_stage or complete or now - model.stage_told_at >= PROGRESS_TOLD_S):
        return
    model.stage_told_at = now
    waiting = [(c.peer, c.id) for c in model.spawns]
    waiting += [(r.peer, r.id) for r in model.queue.values()]
    for peer, id in waiting:
        s.tell(
            peer,
            Event(
                id=id,
                name="progress",
                model=model.name,
                stage=header.stage,
                done=header.done,
                total=header.total,
                unit=header.unit,
            ),
        )


def loaded(s: State, worker: Worker, header: Loaded, body: bytes, now: float) -> None:
    """A model is there; settling its worker serves who waits."""
    model = spoken_of(s, worker, header.model, Residency.loading)
    if model is None:
        return
    try:
        report = msgspec.msgpack.decode(body, type=LoadedBody)
    except msgspec.MsgspecError as error:
        s.counters["worker_protocol_errors"] += 1
        reason = f"its report of a loaded model cannot be read: {error}"
        failure.lose(s, worker, now, Cause.broke_protocol, reason)
        return
    model.loaded = report
    model.shared_bytes = report.shared_bytes
    model.loads += 1
    s.metrics.models[model.name].cold_start.observe(now - model.began_at)
    model.failures.clear()
    model.summoned = model.ran_out = False
    pace.loaded(model, now)
    model.ordered = False
    vacancy.clear_stage(model)
    model.ready_at = model.idle_since = worker.moved_at = now
    worker.ready_at = now if worker.ready_at is None else worker.ready_at
    least_bytes = sum(
        m.loaded.memory_bytes - m.shared_bytes for m in s.models_of(worker) if m.loaded
    )
    worker.memory_bytes = max(worker.memory_bytes, least_bytes)
    s.place(model, Residency.ready)
    s.note(
        "model_loaded",
        worker=worker.name,
        epoch=worker.epoch,
        model=model.name,
        load_s=round(now - model.began_at, 3),
        memory_bytes=report.memory_bytes,
        shared_bytes=report.shared_bytes,
    )


def leave(s: State, model: Model, now: float) -> None:
    """Take a model without requests out of its worker; with the last one its process stops."""
    worker = s.worker_of(model)
    if model.drain_began_at is not None:
        s.metrics.models[model.name].drain.observe(now - model.drain_began_at)
        model.drain_began_at = None
    if not any(other is not model and stays(s, other) for other in s.models_of(worker)):
        stopping.take_down(s, worker, now)
    elif model.state is Residency.loading and not model.ordered:
        vacancy.vacate(s, model)
    else:
        # A worker that loads hears of it at its load's next step.
        loads = any(other.ordered for other in s.models_of(worker))
        limit_s = s.limits.load_stall_s if loads else s.limits.unload_timeout_s
        s.order(worker, Unload(epoch=worker.epoch, model=model.name))
        s.place(model, Residency.unloading, now + limit_s)


def stays(s: State, model: Model) -> bool:
    """Whether a model needs its worker to live on: it is in it, or will be next.

    Only for the one that is next in line: else an empty worker would hold the room that the next
    in line waits for.
    """
    is_next = next(iter(s.callers), None) == model.name
    return model.state not in OUTSIDE or (is_next and model.wanted)


def unloaded(s: State, worker: Worker, header: Unloaded, now: float) -> None:
    """A model is out of its worker, which has given its memory back."""
    model = spoken_of(s, worker, header.model, Residency.unloading)
    if model is None:
        return
    s.note("model_unloaded", worker=worker.name, epoch=worker.epoch, model=model.name)
    vacancy.vacate(s, model)
    # What it gave back counts when it is measured: ask for that at once.
    worker.ping_at = now - s.limits.ping_interval_s


def spoken_of(s: State, worker: Worker, name: str, state: Residency) -> Model | None:
    """The model a worker speaks of, if it is one of its own and in that state."""
    model = s.models.get(name)
    if model is None or model.worker != worker.name or model.state is not state:
        s.counters["stale_dropped"] += 1
        return None
    return model
