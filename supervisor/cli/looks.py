"""``dflashctl status`` and ``models``: looking changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import structs

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import ModelStatus, SnapshotBody, WorkerStatus
from ...protocol.question import ask_status
from ..exit_statuses import EXIT_OK
from .exits import NoDaemon
from .screen import amount
from .table import Table
from .tables import show
from .words import duration, state_of

ABSENT = frozenset({ErrorCode.not_found, ErrorCode.worker_lost, ErrorCode.protocol})
"""Whoever listens, if anybody does, is no daemon that answers."""


def status(options: argparse.Namespace) -> int:
    """Show the daemon's whole state."""
    snapshot = asked_state(options)
    if options.json:
        write_json(snapshot)
    else:
        show(*page(snapshot))
    return EXIT_OK


def asked_state(options: argparse.Namespace) -> SnapshotBody:
    """The daemon's state, asked for without the client: a look should not take time."""
    if options.connect:
        from .connection import connected  # brings asyncio, which a look at home does without

        with connected(options) as client:
            return client.status()
    try:
        return ask_status(options.runtime_dir)
    except DflashError as error:
        if error.code in ABSENT:
            raise NoDaemon(error.message) from error
        raise


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
        return
    workers = {worker.name: worker for worker in snapshot.workers}
    rows = [row(model, workers[model.worker]) for model in snapshot.models]
    heads = ("MODEL", "STATE", "ENGINE", "PID", "MEMORY", "ACTIVE", "QUEUED", "DONE")
    yield Table(heads, rows)
    yield from notes(snapshot)


def notes(snapshot: SnapshotBody) -> Iterator[str]:
    """What the table has no room for: what groups save, and what is wrong and why."""
    for worker in snapshot.workers:
        if worker.saved_bytes:
            saved = amount(worker.saved_bytes, "bytes")
            yield f"{worker.name}: its models share {saved} that they would hold twice apart\n"
        if worker.reason and worker.state in ("backoff", "fatal", "lost"):
            yield f"{worker.name}: {worker.reason.splitlines()[0]}\n"
            yield from (f"  | {line}\n" for line in worker.last_lines.splitlines())
    for model in snapshot.models:
        if model.reason:
            yield f"{model.name}: {model.reason.splitlines()[0]}\n"


def row(model: ModelStatus, worker: WorkerStatus) -> tuple[str, ...]:
    """One model's line."""
    return (
        model.name,
        state_of(model, worker),
        model.loaded.engine if model.loaded else "-",
        str(worker.pid) if worker.pid else "-",
        amount(worker.memory_bytes, "bytes") if worker.memory_bytes else "-",
        str(model.active),
        str(model.queued),
        str(model.completed),
    )
