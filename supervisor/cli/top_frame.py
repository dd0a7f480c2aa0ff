"""What ``dflashctl top`` shows of two looks at the daemon, a moment apart. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...protocol.messages import EventBody, MetricsBody, ModelStatus, SnapshotBody
from .memory_cells import Held, memory_cells
from .screen import amount
from .table import Table
from .words import duration, event_line, state_of

BAR_CELLS = 30


class Look(Struct, frozen=True, kw_only=True):
    """All that the daemon told at one time; ``at_s`` on a steady clock."""

    at_s: float
    snapshot: SnapshotBody
    metrics: MetricsBody
    events: tuple[EventBody, ...] = ()


class ModelFrame(Struct, frozen=True, kw_only=True):
    """One model; the rates are None where nothing was made, or only one look was taken."""

    model: str
    state: str
    engine: str
    worker: str
    pid: int | None
    memory_bytes: int
    active: int
    queued: int
    completed: int
    tokens_per_s: float | None = None
    acceptance_length_tokens: float | None = None


class Frame(Struct, frozen=True, kw_only=True):
    """The picture."""

    version: str
    state: str
    uptime_s: float
    pool_bytes: int
    reserved_bytes: int
    measured_bytes: int
    tokens_per_s: float
    queued: int
    active: int
    models: tuple[ModelFrame, ...]
    events: tuple[EventBody, ...]


def frame_of(before: Look | None, after: Look) -> Frame:
    """The state of ``after``, and what was made since ``before`` if that is the same daemon's."""
    snapshot = after.snapshot
    if before is not None and before.snapshot.instance != snapshot.instance:
        before = None
    models = tuple(model_frame(model, before, after) for model in snapshot.models)
    return Frame(
        version=snapshot.version,
        state=snapshot.state,
        uptime_s=snapshot.uptime_s,
        pool_bytes=snapshot.pool_bytes,
        reserved_bytes=snapshot.reserved_bytes,
        measured_bytes=sum(worker.memory_bytes for worker in snapshot.workers),
        tokens_per_s=sum(model.tokens_per_s or 0 for model in models),
        queued=sum(model.queued for model in models),
        active=sum(model.active for model in models),
        models=models,
        events=after.events,
    )


def model_frame(model: ModelStatus, before: Look | None, after: Look) -> ModelFrame:
    """One model's line."""
    worker = next(worker for worker in after.snapshot.workers if worker.name == model.worker)
    tokens = gained("dflashd_tokens_total", model.name, before, after)
    chunks = gained("dflashd_chunks_total", model.name, before, after)
    passed_s = after.at_s - before.at_s if before else 0
    return ModelFrame(
        model=model.name,
        state=state_of(model, worker),
        engine=model.loaded.engine if model.loaded else "",
        worker=model.worker,
        pid=model.pid,
        memory_bytes=worker.memory_bytes if model.pid else 0,
        active=model.active,
        queued=model.queued,
        completed=model.completed,
        tokens_per_s=tokens / passed_s if passed_s > 0 else None,
        acceptance_length_tokens=tokens / chunks if chunks else None,
    )


def gained(name: str, model: str, before: Look | None, after: Look) -> float:
    """How much a counter of ``model`` went up between the looks."""
    if before is None:
        return 0
    earlier, later = before.metrics.by_model(name), after.metrics.by_model(name)
    return max(0, later.get(model, 0) - earlier.get(model, 0))


def parts(frame: Frame) -> Iterator[str | Table]:
    """The picture for a person."""
    speed = f"{frame.tokens_per_s:.1f} tokens/s, " if frame.tokens_per_s else ""
    yield (
        f"dflashd {frame.version}, up {duration(frame.uptime_s)}, {frame.state}: {speed}"
        f"{frame.active} active, {frame.queued} queued\n"
    )
    yield memory_line(frame)
    if frame.models:
        heads = ("MODEL", "STATE", "ENGINE", "PID", "MEMORY", "TOKENS/S", "ACCEPTED")
        held = (Held(m.model, m.worker, m.memory_bytes) for m in frame.models)
        memory = memory_cells(held)
        rows = [row(model, memory[model.model]) for model in frame.models]
        yield Table((*heads, "ACTIVE", "QUEUED", "DONE"), rows)
    else:
        yield "no models are configured: `dflashctl init` writes a configuration\n"
    if frame.events:
        yield "\n" + "".join(event_line(event) + "\n" for event in frame.events)


def memory_line(frame: Frame) -> str:
    """Measured (#) and reserved (-) memory against the pool."""
    measured = amount(frame.measured_bytes, "bytes")
    used = min(BAR_CELLS, round(BAR_CELLS * frame.measured_bytes / frame.pool_bytes))
    held = min(BAR_CELLS, round(BAR_CELLS * frame.reserved_bytes / frame.pool_bytes))
    bar = "#" * used + "-" * max(0, held - used)
    reserved, pool = amount(frame.reserved_bytes, "bytes"), amount(frame.pool_bytes, "bytes")
    return f"memory [{bar:{BAR_CELLS}}] {measured} measured, {reserved} reserved of {pool}\n"


def row(model: ModelFrame, memory: str) -> tuple[str, ...]:
    """One model's cells."""
    speed, accepted = model.tokens_per_s, model.acceptance_length_tokens
    return (
        model.model,
        model.state,
        model.engine or "-",
        str(model.pid) if model.pid else "-",
        memory,
        f"{speed:.1f}" if speed else "-",
        f"{accepted:.2f}" if accepted else "-",
        str(model.active),
        str(model.queued),
        str(model.completed),
    )
