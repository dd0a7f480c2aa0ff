"""From nothing to ready: spawn, register, load."""

from __future__ import annotations

import msgspec

from ...protocol.messages import (
    Event,
    Load,
    Loaded,
    LoadedBody,
    LoadFailed,
    Progress,
    Registered,
    Stop,
)
from . import failure, stopping
from .effects import SpawnProcess
from .events import ProcessStarted, ProcessStartFailed
from .records import Model, Worker, WorkerState
from .state import State

PROGRESS_TOLD_S = 0.1
"""Waiting clients hear of progress inside one stage at most this often."""


def spawn(s: State, worker: Worker, now: float) -> None:
    """Begin a new incarnation."""
    s.last_epoch += 1
    worker.epoch = s.last_epoch
    worker.pid = None
    worker.connected = False
    worker.ready_at = None
    worker.spawned_at = now
    worker.memory_bytes = 0
    worker.reason = ""
    if worker.failures:
        worker.restarts += 1
    s.emit(SpawnProcess(worker=worker.name, epoch=worker.epoch))
    s.enter(worker, WorkerState.spawning, now + s.limits.spawn_timeout_s)


def started(s: State, worker: Worker, event: ProcessStarted, now: float) -> None:
    """The process exists; it may have become unwanted meanwhile."""
    worker.pid = event.pid
    if worker.state is WorkerState.spawning:
        s.enter(worker, WorkerState.registering, now + s.limits.register_timeout_s)
    elif worker.state is WorkerState.stopping:
        stopping.terminate(s, worker, now)


def start_failed(s: State, worker: Worker, event: ProcessStartFailed, now: float) -> None:
    """There is no process and there will be none."""
    failure.ended(s, worker, now, f"its process could not be started: {event.reason}")


def registered(s: State, worker: Worker, now: float) -> None:
    """The incarnation speaks: have it load its models."""
    if worker.connected:
        s.counters["worker_protocol_errors"] += 1
        return
    worker.connected = True
    worker.ping_n = 0
    worker.steps = 0
    worker.ping_at = worker.pong_at = worker.moved_at = now
    if worker.state is WorkerState.registering:
        s.order(worker, Registered(epoch=worker.epoch))
        for model in s.models_of(worker):
            s.order(worker, Load(epoch=worker.epoch, model=model.name), model.settings.load_body)
        s.enter(worker, WorkerState.loading, now + s.limits.load_stall_s)
    else:
        s.order(worker, Stop(epoch=worker.epoch))


def progress(s: State, worker: Worker, header: Progress, now: float) -> None:
    """A load moved: feed its stall timer and tell those who wait."""
    model = loading_model(s, worker, header.model)
    if model is None:
        return
    place = (model.stage, model.stage_done)
    changed_stage = header.stage != model.stage
    model.stage = header.stage
    model.stage_done = header.done
    model.stage_total = header.total
    if place == (header.stage, header.done):
        return
    worker.deadline = now + s.limits.load_stall_s
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
    """A model is there; with the last one the worker is ready."""
    model = loading_model(s, worker, header.model)
    if model is None:
        return
    try:
        model.loaded = msgspec.msgpack.decode(body, type=LoadedBody)
    except msgspec.MsgspecError as error:
        s.counters["worker_protocol_errors"] += 1
        failure.lose(s, worker, now, f"its report of a loaded model cannot be read: {error}")
        return
    model.loads += 1
    model.stage = ""
    model.stage_done = model.stage_total = 0
    worker.memory_bytes = sum(m.loaded.memory_bytes for m in s.models_of(worker) if m.loaded)
    if all(m.loaded for m in s.models_of(worker)):
        worker.ready_at = worker.idle_since = worker.moved_at = now
        s.enter(worker, WorkerState.ready, None)
        s.note(
            "worker_ready",
            worker=worker.name,
            epoch=worker.epoch,
            load_s=round(now - worker.spawned_at, 3),
            memory_bytes=worker.memory_bytes,
        )


def load_failed(s: State, worker: Worker, header: LoadFailed, now: float) -> None:
    """A model cannot be had: tell all who wait for it, and let the worker go."""
    model = loading_model(s, worker, header.model)
    if model is None:
        return
    s.note(
        "load_failed",
        worker=worker.name,
        epoch=worker.epoch,
        model=model.name,
        code=header.code,
        message=header.message,
    )
    failure.refused(s, worker, now, header.code, header.message)


def loading_model(s: State, worker: Worker, name: str) -> Model | None:
    """The model a loading worker speaks of, if it is one of its own."""
    if worker.state is not WorkerState.loading or name not in worker.models:
        s.counters["stale_dropped"] += 1
        return None
    return s.models[name]
