"""Every way a worker may fail, in every stage, beside a model that must not notice."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from dflashd.protocol import DflashError, ErrorCode, SnapshotBody
from dflashd.protocol.messages import WorkerStatus
from dflashd.protocol.sync import Generation

from .daemon_process import DaemonProcess, is_alive, wait_for

pytestmark = pytest.mark.slow

HANGS = ("stopped", "hung", "hung with the GIL")
CRASHES = ("killed", "aborted", "left", "import error")
LIMIT_S = 120.0
AT_ONCE = 4
BYSTANDER = "bystander"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault: what is done to a worker, in which stage."""

    fault: str
    stage: str

    @property
    def name(self) -> str:
        return f"{self.fault}-in-{self.stage}".replace(" ", "-")

    @property
    def flags(self) -> dict[str, Any]:
        return {"fault": self.fault, "fault_at": self.stage, "load_s": 0.1}


ROWS = (
    *(Row(fault=f, stage=s) for f in CRASHES for s in ("idle", "loading", "prefill", "decode")),
    *(Row(fault=f, stage=s) for f in HANGS for s in ("idle", "loading", "prefill", "decode")),
    *(Row(fault="unusable", stage=s) for s in ("start", "idle", "loading", "prefill", "decode")),
    Row(fault="import error", stage="start"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a row came to."""

    first: str
    message: str
    retryable: bool
    second: str
    gone: bool
    before: WorkerStatus | None
    after: WorkerStatus


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[Outcome]]]:
    """All rows happen to one daemon, some at a time, while a bystander streams."""
    models: dict[str, dict[str, Any]] = {row.name: row.flags for row in ROWS}
    models[BYSTANDER] = {"chunks": 10_000_000, "chunk_s": 0.02}
    daemon = DaemonProcess(
        models,
        ping_interval_s=0.5,
        pong_timeout_s=6,
        loading_pong_timeout_s=6,
        backoff_first_s=0.1,
    )
    try:
        with daemon.client() as client, ThreadPoolExecutor(AT_ONCE + 1) as pool:
            client.spawn(BYSTANDER)
            undisturbed = client.generate(BYSTANDER, "x")
            heard = pool.submit(listen, undisturbed)
            futures = {row.name: pool.submit(happen, daemon, row) for row in ROWS}
            yield futures
            for future in futures.values():
                future.exception(LIMIT_S)
            assert not undisturbed.ended
            undisturbed.cancel()
            tokens = heard.result(LIMIT_S)
            assert tokens == list(range(len(tokens)))
            assert len(tokens) > len(ROWS)
            check_books(client.status())
    finally:
        log = daemon.close()
        assert "internal_error" not in log, log


def listen(generation: Generation) -> list[int]:
    """What a request said until it was cancelled."""
    tokens: list[int] = []
    with contextlib.suppress(DflashError):
        for chunk in generation:
            tokens += chunk.tokens
    return tokens


def check_books(status: SnapshotBody) -> None:
    """Every request was answered once, whatever became of its worker."""
    counters = status.counters
    codes = [str(code) for code in ErrorCode]
    assert sum(counters.get(key, 0) for key in ("completed", *codes)) == counters["generates"]
    assert all(model.active == model.queued == 0 for model in status.models)
    bystander = next(worker for worker in status.workers if worker.name == BYSTANDER)
    assert (bystander.epoch, bystander.restarts) == (1, 0)


def happen(daemon: DaemonProcess, row: Row) -> Outcome:
    """Provoke one fault, then ask the same model again."""
    with daemon.client() as client:

        def worker() -> WorkerStatus:
            return next(w for w in client.status().workers if w.name == row.name)

        before = None
        if row.stage == "idle":
            client.spawn(row.name)
            before = worker()
            assert before.pid
            os.kill(before.pid, signal.SIGUSR1)
            wait_for("its state is true", lambda: worker().pid != before.pid, LIMIT_S)
        first, message, retryable = ask(client.generate(row.name, "x"))
        second, _, _ = ask(client.generate(row.name, "x"))
        after = worker()
        gone = before is None or not is_alive(before.pid or 0)
        client.retire(row.name)
    return Outcome(
        first=first,
        message=message,
        retryable=retryable,
        second=second,
        gone=gone,
        before=before,
        after=after,
    )


def ask(generation: Generation) -> tuple[str, str, bool]:
    """How a request ended: ``done`` or a code, with the sentence."""
    try:
        done = generation.wait()
    except DflashError as error:
        return str(error.code), error.message, error.retryable
    assert done.tokens == (0, 1, 2, 3, 4)
    return "done", "", False


def rows(*, faults: tuple[str, ...], stages: tuple[str, ...]) -> Any:
    """Tests for some of the rows, each under its name."""
    chosen = [row.name for row in ROWS if row.fault in faults and row.stage in stages]
    return pytest.mark.parametrize("name", chosen)


@rows(faults=CRASHES + HANGS, stages=("prefill", "decode"))
def test_fault_at_work_fails_its_request_and_serves_the_next(
    outcomes: dict[str, Future[Outcome]], name: str
) -> None:
    """The request fails once, as worker_lost and worth trying again; the next one is served."""
    outcome = outcomes[name].result(LIMIT_S)
    assert (outcome.first, outcome.retryable) == ("worker_lost", True)
    assert outcome.message
    assert outcome.second == "done"
    assert (outcome.after.state, outcome.after.restarts) == ("ready", 1)


@rows(faults=CRASHES + HANGS, stages=("idle", "loading"))
def test_fault_away_from_requests_fails_none(
    outcomes: dict[str, Future[Outcome]], name: str
) -> None:
    """A worker that fails idle or while it loads costs waiting, not an answer."""
    outcome = outcomes[name].result(LIMIT_S)
    assert (outcome.first, outcome.second) == ("done", "done")
    assert outcome.gone
    assert (outcome.after.state, outcome.after.restarts) == ("ready", 1)


@rows(faults=("unusable",), stages=("start", "idle", "loading", "decode"))
def test_exit_do_not_restart_is_obeyed(outcomes: dict[str, Future[Outcome]], name: str) -> None:
    """Exit status 78 is final wherever it happens: fatal at once, with the reason."""
    outcome = outcomes[name].result(LIMIT_S)
    assert outcome.first == ("worker_lost" if name.endswith("decode") else "load_failed")
    assert "78" in outcome.message
    assert outcome.second == "load_failed"
    assert outcome.after.state == "fatal"
    assert "78" in outcome.after.reason


@rows(faults=("import error",), stages=("start",))
def test_import_error_is_retried_and_told(outcomes: dict[str, Future[Outcome]], name: str) -> None:
    """A worker that breaks before it speaks is started again, and whoever waits is served."""
    outcome = outcomes[name].result(LIMIT_S)
    assert (outcome.first, outcome.second) == ("done", "done")
    assert outcome.after.restarts == 1
