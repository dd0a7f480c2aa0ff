"""The real worker, stopped, killed, aborted and hung while it computes a tiny real model."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from dflashd.protocol import Client, Daemon, DflashError, ErrorCode
from dflashd.protocol.messages import WorkerStatus

from ..process.daemon_process import is_alive, wait_for
from ..tiny import Shape, make_draft, make_target

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


@pytest.fixture
def client(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Client]:
    """A client of a daemon with two tiny models, whose workers can be made to hang."""
    folder = short_dir / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(MISBEHAVIOUR)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    shape = Shape(context_tokens=2 * LONG)
    target, draft = make_target(short_dir / "t", shape), make_draft(short_dir / "d", shape)
    run, config = short_dir / "run", short_dir / "config.toml"
    keys = f'target = "{target}"\nprefill_chunk_tokens = {PREFILL_CHUNK}'
    config.write_text(f"""
[daemon]
runtime_dir = "{run}"
state_dir = "{short_dir / "state"}"
ping_interval_s = 0.5
pong_timeout_s = 8
backoff_first_s = 0.1
worker_hang_s = 4
[models.victim]
{keys}
draft = "{draft}"
[models.other]
{keys}
""")
    with (
        Daemon(config, runtime_dir=run, log=short_dir / "daemon.log") as daemon,
        daemon.client() as connected,
    ):
        yield connected


def worker(client: Client, name: str) -> WorkerStatus:
    return next(worker for worker in client.status().workers if worker.name == name)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP", "SIGABRT", "SIGUSR1", "SIGUSR2"])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_fault_in_the_middle_of_work(client: Client, number: str, stage: str) -> None:
    """Its request fails once as worker_lost, the process is gone, the next request is served."""
    client.spawn("victim")
    before = worker(client, "victim")
    if stage == "prefill":
        generation = client.generate("victim", tokens=(7, 8, 9) * (LONG // 3), max_tokens=4)
        wait_for(
            "it computes",
            lambda: next(m.active for m in client.status().models if m.name == "victim"),
        )
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
    assert worker(client, "victim").restarts == 1
    assert client.generate("other", "the quick", max_tokens=4).wait().tokens
    assert worker(client, "other").restarts == 0
