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
from .screen import amount, table

ABSENT = frozenset({ErrorCode.not_found, ErrorCode.worker_lost, ErrorCode.protocol})
"""Whoever listens, if anybody does, is no daemon that answers."""


def status(options: argparse.Namespace) -> int:
    """Show the daemon's whole state."""
    snapshot = state_of(options)
    if options.json:
        write_json(snapshot)
    else:
        sys.stdout.write(page(snapshot))
    return EXIT_OK


def state_of(options: argparse.Namespace) -> SnapshotBody:
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
    snapshot = state_of(options)
    if options.json:
        write_json(snapshot.models)
    elif not snapshot.models:
        sys.stdout.write("no models are configured: see dflashd.example.toml\n")
    else:
        rows = [(m.name, m.state, m.target, m.draft or "-") for m in snapshot.models]
        sys.stdout.write(table(("MODEL", "STATE", "TARGET", "DRAFT"), rows))
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


def page(snapshot: SnapshotBody) -> str:
    """The state for a person."""
    head = (
        f"dflashd {snapshot.version}, pid {snapshot.pid}, up {duration(snapshot.uptime_s)}, "
        f"{snapshot.state}; memory: {amount(snapshot.reserved_bytes, 'bytes')} of "
        f"{amount(snapshot.pool_bytes, 'bytes')} reserved\n"
    )
    if not snapshot.models:
        return head + "no models are configured: see dflashd.example.toml\n"
    workers = {worker.name: worker for worker in snapshot.workers}
    rows = [row(model, workers[model.worker]) for model in snapshot.models]
    heads = ("MODEL", "STATE", "ENGINE", "PID", "MEMORY", "ACTIVE", "QUEUED", "DONE")
    return head + table(heads, rows) + "".join(notes(snapshot))


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
    state = model.state
    if model.stage:
        state += f": {model.stage}"
        if model.stage_total:
            state += f" {100 * model.stage_done // model.stage_total} %"
    elif (left_s := model.retry_in_s or worker.retry_in_s) is not None:
        state += f" ({left_s:.0f} s)"
    return (
        model.name,
        state,
        model.loaded.engine if model.loaded else "-",
        str(worker.pid) if worker.pid else "-",
        amount(worker.memory_bytes, "bytes") if worker.memory_bytes else "-",
        str(model.active),
        str(model.queued),
        str(model.completed),
    )


def duration(seconds: float) -> str:
    """Time for a person."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
