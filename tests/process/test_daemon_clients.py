"""Clients that are killed, stand still, or change their mind: only their own requests suffer."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from dflashd.protocol import Client, DflashError
from dflashd.protocol.sync import Generation

from .daemon_process import DaemonProcess, wait_for
from .other_client import other_client

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}


def active(client: Client, model: str) -> int:
    return next(m.active for m in client.status().models if m.name == model)


def queued(client: Client, model: str) -> int:
    return next(m.queued for m in client.status().models if m.name == model)


def test_killed_client_is_forgotten(make_daemon: MakeDaemon) -> None:
    """SIGKILL of a client mid-stream: its request is stopped in the worker, others go on."""
    daemon = make_daemon({"a": {**LONG, "chunk_s": 0.02}}, keepalive_s=0.2)
    with daemon.client() as client, other_client(daemon, "a") as victim:
        assert victim.stdout is not None
        assert json.loads(victim.stdout.readline()) == [0]
        own = iter(client.generate("a", "x"))
        assert next(own).tokens == (0,)
        assert active(client, "a") == 2
        victim.kill()
        wait_for("its place is free", lambda: active(client, "a") == 1)
        assert next(own).tokens == (1,)
        assert client.status().counters["requests_orphaned"] == 1


@pytest.mark.parametrize("load_s", [0.0, 60.0], ids=["for a place", "for a load"])
def test_killed_client_waits_no_longer(make_daemon: MakeDaemon, load_s: float) -> None:
    """SIGKILL of a client whose request is queued: it is forgotten, not run for nobody."""
    daemon = make_daemon(
        {"a": {**LONG, "load_s": load_s}}, active_requests_per_worker=1, keepalive_s=0.2
    )
    with daemon.client() as client:
        own = client.generate("a", "x")
        if not load_s:
            wait_for("the place is taken", lambda: active(client, "a") == 1)
        before = queued(client, "a")
        with other_client(daemon, "a") as victim:
            wait_for("it waits, too", lambda: queued(client, "a") == before + 1)
            victim.kill()
            wait_for("nobody else waits", lambda: queued(client, "a") == before)
        assert not own.ended


def test_stopped_client_holds_nobody_up_and_loses_nothing(make_daemon: MakeDaemon) -> None:
    """SIGSTOP of a client: others stream past it; when it goes on, nothing is missing."""
    daemon = make_daemon({"a": {"chunks": 300, "chunk_s": 0.001}})
    with daemon.client() as client, other_client(daemon, "a") as stopped:
        assert stopped.stdout is not None
        tokens = json.loads(stopped.stdout.readline())
        os.kill(stopped.pid, signal.SIGSTOP)
        for _ in range(3):
            assert client.generate("a", "x").wait().tokens == tuple(range(300))
        assert active(client, "a") == 1
        os.kill(stopped.pid, signal.SIGCONT)
        for line in stopped.stdout:
            tokens += json.loads(line)
        assert tokens == list(range(300))


def test_cancel_may_race_the_end(make_daemon: MakeDaemon) -> None:
    """Cancels at any moment, at times twice: each request ends once, as done or as cancelled."""
    daemon = make_daemon({"a": {"chunks": 3, "chunk_s": 0.001}})
    ends: Counter[str] = Counter()
    with daemon.client() as client:
        client.spawn("a")
        for number in range(150):
            generation = client.generate("a", "x")
            if number % 3:  # else while it is queued or just leased
                next(chunks := iter(generation))
                for _ in range(number % 3 - 1):
                    next(chunks, None)
            for _ in range(1 + number % 2):
                generation.cancel()
            ends[end_of(generation)] += 1
        wait_for("the worker is idle", lambda: active(client, "a") == 0)
        counters = client.status().counters
    assert set(ends) <= {"done", "cancelled"}
    assert counters["generates"] == 150
    assert counters.get("completed", 0) + counters.get("cancelled", 0) == 150
    assert client.status().workers[0].restarts == 0


def end_of(generation: Generation) -> str:
    try:
        generation.wait()
    except DflashError as error:
        return str(error.code)
    return "done"
