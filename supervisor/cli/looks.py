"""``dflashctl status`` and ``models``: looking changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import structs

from ...protocol.messages import ModelStatus, ServiceStatus, SnapshotBody, WorkerStatus
from ..exit_statuses import EXIT_OK
from .connection import asking
from .memory_cells import Held, memory_cells
from .screen import amount
from .table import Table
from .tables import show
from .words import duration, state_of


def status(options: argparse.Namespace) -> int:
    """Show the daemon's whole state."""
    snapshot = asked_state(options)
    if options.json:
        write_json(snapshot)
    else:
        show(*page(snapshot))
    return EXIT_OK


def asked_state(options: argparse.Namespace) -> SnapshotBody:
    """The daemon's state."""
    with asking(options) as daemon:
        return daemon.status()


def models(options: argparse.Namespace) -> int:
    """List the configured models."""
    snapshot = asked_state(options)
    if options.json:
        write_json(snapshot.models)
    elif not snapshot.models:
        sys.stdout.write("no models are configured: `dflashctl init` writes a configuration\n")
    else:
        rows = [(m.name, m.state, m.target, m.draft or "-") for m in snapshot.models]
        show(Table(("MODEL", "STATE", "TARGET", "DRAFT"), rows))
    return EXIT_OK


def write_json(value: object) -> None:
    """Print one JSON value on one line."""
    sys.stdout.write(msgspec.json.encode(complete(value)).decode() + "\n")


def complete(value: object) -> object:
    """A value with every field, also those at their default, which the wire leaves out."""
    if isinstance(value, msgspec.Struct):
        return {name: complete(field) for name, field in structs.asdict(value).items()}
    if isinstance(value, tuple):
        return [complete(item) for item in cast("tuple[object, ...]", value)]
    return value


def page(snapshot: SnapshotBody) -> Iterator[str | Table]:
    """The state for a person."""
    yield (
        f"dflashd {snapshot.version}, pid {snapshot.pid}, up {duration(snapshot.uptime_s)}, "
        f"{snapshot.state}; memory: {amount(snapshot.reserved_bytes, 'bytes')} of "
        f"{amount(snapshot.pool_bytes, 'bytes')} reserved\n"
    )
    if not snapshot.models:
        yield "no models are configured: `dflashctl init` writes a configuration\n"
        yield from ways_in(snapshot)
        return
    workers = {worker.name: worker for worker in snapshot.workers}
    memory = memory_cells(
        Held(m.name, m.worker, workers[m.worker].memory_bytes if m.pid else 0)
        for m in snapshot.models
    )
    rows = [row(m, workers[m.worker], memory[m.name]) for m in snapshot.models]
    heads = ("MODEL", "STATE", "ENGINE", "WORKER", "PID", "MEMORY", "ACTIVE", "QUEUED", "DONE")
    yield Table(heads, rows)
    yield from notes(snapshot)
    yield from ways_in(snapshot)


def ways_in(snapshot: SnapshotBody) -> Iterator[str | Table]:
    """What else serves clients, and what the daemon itself cannot do as it should."""
    if snapshot.services:
        yield "\n"
        yield Table(
            ("SERVICE", "STATE", "PID", "ADDRESS"),
            [(s.name, retried(s), str(s.pid or "-"), s.address) for s in snapshot.services],
        )
        told = (service for service in snapshot.services if service.reason)
        yield from (f"{s.name}: {s.reason.splitlines()[0]}\n" for s in told)
    yield from (f"problem: {sentence}\n" for sentence in snapshot.problems)


def retried(service: ServiceStatus) -> str:
    """A service's state, with when a failed one is tried again."""
    left_s = service.retry_in_s
    return service.state if left_s is None else f"{service.state} ({left_s:.0f} s)"


def notes(snapshot: SnapshotBody) -> Iterator[str]:
    """What the table has no room for: what groups save, what is pinned, what is wrong and why."""
    for worker in snapshot.workers:
        if worker.saved_bytes:
            saved = amount(worker.saved_bytes, "bytes")
            yield f"{worker.name}: its models share {saved} that they would hold twice apart\n"
        if worker.reason and worker.state in ("backoff", "fatal", "lost"):
            yield f"{worker.name}: {worker.reason.splitlines()[0]}\n"
            yield from (f"  | {line}\n" for line in worker.last_lines.splitlines())
    pinned = [model.name for model in snapshot.models if model.pinned]
    if pinned:
        yield f"pinned: {', '.join(pinned)}\n"
    for model in snapshot.models:
        if model.reason:
            yield f"{model.name}: {model.reason.splitlines()[0]}\n"


def row(model: ModelStatus, worker: WorkerStatus, memory: str) -> tuple[str, ...]:
    """One model's line: models of one worker share its pid and memory."""
    return (
        model.name,
        state_of(model, worker),
        model.loaded.engine if model.loaded else "-",
        model.worker,
        str(model.pid) if model.pid else "-",
        memory,
        str(model.active),
        str(model.queued),
        str(model.completed),
    )
