"""The real worker, stopped, killed, aborted and hung while it computes a tiny real model."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from dflashd.protocol import Client, Daemon, DflashError, ErrorCode
from dflashd.protocol.messages import WorkerStatus

from ..process.daemon_process import is_alive, wait_for
from ..tiny import Shape, make_draft, make_target

pytestmark = pytest.mark.slow

LONG = 100_000
PREFILL_CHUNK = 64

MISBEHAVIOUR = """
import ctypes, os, signal, threading, time

def hold(number, frame):
    ctypes.PyDLL(None).sleep(1000)  # C code that does not give the interpreter back

def hang(number, frame):
    time.sleep(1000)  # this thread only, which is the one that answers pings

signal.signal(signal.SIGUSR1, hold)
signal.signal(signal.SIGUSR2, hang)
"""
"""Read by every interpreter that starts with it on its path; the signals come from the test."""


@contextlib.contextmanager
def serving(home: Path, limits: str) -> Generator[Client]:
    """A client of a daemon with a tiny model, whose worker can be made to hang; ``limits`` says how
    soon that is noticed, and by whom.
    """
    folder = home / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(MISBEHAVIOUR)
    shape = Shape(context_tokens=2 * LONG)
    target, draft = make_target(home / "t", shape), make_draft(home / "d", shape)
    run, config = home / "run", home / "config.toml"
    keys = f'target = "{target}"\nprefill_chunk_tokens = {PREFILL_CHUNK}'
    config.write_text(f"""
[daemon]
runtime_dir = "{run}"
state_dir = "{home / "state"}"
ping_interval_s = 0.5
{limits}
backoff_first_s = 0.1
backoff_limit_s = 0.1
failures_before_fatal = 50
[models.victim]
{keys}
draft = "{draft}"
""")
    with pytest.MonkeyPatch.context() as environment, contextlib.ExitStack() as running:
        environment.setenv("PYTHONPATH", str(folder))
        daemon = running.enter_context(Daemon(config, runtime_dir=run, log=home / "daemon.log"))
        yield running.enter_context(daemon.client())


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    """Of one daemon for all: each fault leaves it with a worker that serves."""
    with (
        tempfile.TemporaryDirectory(prefix="dfd", dir="/tmp") as home,
        serving(Path(home), "pong_timeout_s = 5") as connected,
    ):
        yield connected


def worker(client: Client, name: str) -> WorkerStatus:
    return next(worker for worker in client.status().workers if worker.name == name)


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("prefill", "SIGKILL"),
        ("prefill", "SIGUSR1"),
        ("decode", "SIGSTOP"),
        ("decode", "SIGABRT"),
        ("decode", "SIGUSR2"),
    ],
)
def test_fault_in_the_middle_of_work(client: Client, number: str, stage: str) -> None:
    """Its request fails once as worker_lost, the process is gone, the next request is served."""
    client.spawn("victim")
    before = worker(client, "victim")
    if stage == "prefill":
        generation = client.generate("victim", tokens=(7, 8, 9) * (LONG // 3), max_tokens=4)
        wait_for("it computes", lambda: worker(client, "victim").active)
    else:
        generation = client.generate("victim", "the quick", max_tokens=LONG, ignore_eos=True)
        chunks = iter(generation)
        next(chunks)
    assert before.pid
    os.kill(before.pid, signal.Signals[number])
    with pytest.raises(DflashError) as caught:
        generation.wait()
    assert caught.value.code is ErrorCode.worker_lost
    assert caught.value.retryable
    wait_for("the process is gone", lambda: not is_alive(before.pid or 0))
    assert client.generate("victim", "the quick", max_tokens=4).wait().stats.engine == "dflash"
    assert worker(client, "victim").restarts == before.restarts + 1


def test_hang_with_the_interpreter_held_ends_itself(short_dir: Path) -> None:
    """Should nobody else notice: a hang in C code ends the process, with its stack in the log."""
    with serving(short_dir, "pong_timeout_s = 300\nworker_hang_s = 15") as client:
        client.spawn("victim")
        generation = client.generate("victim", "the quick", max_tokens=LONG, ignore_eos=True)
        chunks = iter(generation)
        next(chunks)
        os.kill(worker(client, "victim").pid or 0, signal.SIGUSR1)
        with pytest.raises(DflashError) as caught:
            generation.wait()
        assert caught.value.code is ErrorCode.worker_lost
        assert " in hold\n" in (short_dir / "state" / "logs" / "victim.log").read_text()
        assert client.generate("victim", "the quick", max_tokens=4).wait().tokens
