"""The machine around the daemon: its memory pool, descriptors, directories, and itself."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

from ...protocol.asker import ask_status
from ...protocol.errors import DflashError
from ...protocol.finding import Finding
from ...protocol.messages import SnapshotBody
from ...protocol.paths import Endpoints
from ...protocol.version import VERSION
from ..config.configuration import DaemonSection
from ..directories import flaw
from ..instance_lock import LOCK_NAME, holder_pid
from ..pool import memory_pool

ENOUGH_FILES = 1024
SMALL_POOL_BYTES = 2 * 10**9
PATIENCE_S = 3.0
FAILED = ("backoff", "fatal", "lost")
AGAIN = {
    "http": "once it is mended, dflashctl reload starts it again",
    "tcp": "once it is mended, start the daemon again",
}
"""What to do about a service that was given up."""


def open_files() -> Finding:
    """Descriptors: libzmq aborts a process that has none left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES
    return Finding(
        name="open files",
        says=f"limit {soft} (at most {hard})",
        level="ok" if enough else "note",
        advice="" if enough else f"dflashd raises it itself as far as it may; ulimit -n {hard}",
        figures={"soft": soft, "hard": hard},
    )


def memory() -> Finding:
    """The pool of all workers, as a configuration without a word on it gets it."""
    pool = memory_pool(DaemonSection().memory_share)
    small = pool.budget_bytes < SMALL_POOL_BYTES
    return Finding(
        name="pool",
        says=f"{pool.budget_bytes / 1e9:.1f} GB for all models together ({pool.source})",
        level="note" if small else "ok",
        advice="enough for small models only; memory_share or memory_bytes in [daemon] change it"
        if small
        else "",
        figures={"budget_bytes": pool.budget_bytes, "source": pool.source},
    )


def sockets(folder: Path) -> Finding:
    """The runtime directory: private, writable, with a path short enough for sockets."""
    try:
        longest = max(len(os.fsencode(path)) for path in Endpoints(folder).paths)
    except DflashError as error:
        return Finding(name="sockets", says=error.message, level="problem")
    figures: dict[str, float | int | str] = {"longest_path_bytes": longest}
    if wrong := unusable(folder):
        advice = "or set DFLASHD_RUNTIME_DIR to another directory"
        return Finding(name="sockets", says=wrong, level="problem", advice=advice, figures=figures)
    says = f"in {folder}, paths of up to {longest} bytes"
    return Finding(name="sockets", says=says, figures=figures)


def unusable(folder: Path) -> str:
    """Why the daemon could not keep its sockets there; empty if it can."""
    try:
        return flaw(folder)
    except FileNotFoundError:
        above = next(path for path in folder.absolute().parents if path.exists())
        writable = os.access(above, os.W_OK | os.X_OK)
        return "" if writable else f"{folder} cannot be made: {above} is not ours to write"
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"


def daemon(folder: Path) -> Iterator[Finding]:
    """Whether one serves there, and how its models are."""
    try:
        snapshot = ask_status(folder, timeout_s=PATIENCE_S)
    except DflashError as error:
        yield silent(folder, error)
        return
    other = snapshot.version != VERSION
    yield Finding(
        name="daemon",
        says=f"dflashd {snapshot.version} serves, pid {snapshot.pid}, "
        f"{len(snapshot.models)} model{'s' * (len(snapshot.models) != 1)} configured",
        level="note" if other else "ok",
        advice=f"this is dflashd {VERSION}: restart the daemon to have it too" if other else "",
        figures={"pid": snapshot.pid},
    )
    yield from failed_models(snapshot)
    yield from failed_services(snapshot)


def failed_services(snapshot: SnapshotBody) -> Iterator[Finding]:
    """What does not let clients in, and what the daemon cannot do as it should."""
    for service in snapshot.services:
        if not service.serves:
            yield Finding(
                name="service",
                says=f"{service.name} ({service.address}) is {service.state}: {service.reason}",
                level="note" if service.state in ("waiting", "doubtful") else "problem",
                advice=AGAIN.get(service.name, "") if service.state in FAILED else "",
            )
    for sentence in snapshot.problems:
        yield Finding(name="daemon", says=sentence, level="problem")


def silent(folder: Path, error: DflashError) -> Finding:
    """None serves: it is not there, or it hangs."""
    pid = holder_pid(folder / LOCK_NAME)
    if pid is None or not psutil.pid_exists(pid):
        return Finding(
            name="daemon", says="not running", advice="start one: dflashd serve --config FILE"
        )
    return Finding(
        name="daemon",
        says=f"pid {pid} holds {folder}, but: {error.message}",
        level="problem",
        advice=f"look at its log; if it hangs, kill -9 {pid} and start it again",
        figures={"pid": pid},
    )


def failed_models(snapshot: SnapshotBody) -> Iterator[Finding]:
    """Those that were given up or wait to be tried again."""
    workers = {worker.name: worker for worker in snapshot.workers}
    for model in snapshot.models:
        if model.state in FAILED:
            worker = workers.get(model.worker)
            reason = model.reason or (worker.reason if worker else "") or "no reason is known"
            yield Finding(
                name="model",
                says=f"{model.name} is {model.state}: {reason.splitlines()[0]}",
                level="problem",
                advice=f"dflashctl logs {model.name}; then dflashctl spawn {model.name}",
            )
