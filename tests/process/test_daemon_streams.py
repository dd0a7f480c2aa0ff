"""Requests through the real daemon: on demand, streaming, side by side, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dflashd.protocol import DflashError, ErrorCode
from dflashd.protocol.messages import Accepted, Event

from .daemon_process import DaemonProcess

MakeDaemon = Callable[..., DaemonProcess]


def test_request_spawns_its_model_and_streams(make_daemon: MakeDaemon) -> None:
    """A request to a model that does not run starts it, tells of its progress, and streams."""
    daemon = make_daemon({"a": {"load_s": 0.3}})
    heard: list[Accepted | Event] = []
    with daemon.client() as client:
        assert client.status().models[0].state == "stopped"
        done = client.generate("a", "hello", on_event=heard.append).wait()
        status = client.status()
    assert done.text == "word " * 5
    assert done.tokens == (0, 1, 2, 3, 4)
    assert done.stats.load_ms > 200
    assert status.models[0].state == "ready"
    assert status.models[0].completed == 1
    assert status.workers[0].pid == done.stats.worker_pid
    progress = [e for e in heard if isinstance(e, Event) and e.name == "progress"]
    assert progress
    assert progress[-1].stage == "weights"
    accepted = [e for e in heard if isinstance(e, Accepted)]
    assert accepted[0].position == 1
    assert "starting" in accepted[0].waits_for
    assert accepted[-1].position == 0


def test_two_models_stream_at_the_same_time(make_daemon: MakeDaemon) -> None:
    """Two models answer side by side, each from its own process."""
    daemon = make_daemon({"a": {"chunks": 40}, "b": {"chunks": 40}})
    with daemon.client() as client:
        client.spawn("a")
        client.spawn("b")
        first, second = client.generate("a", "x"), client.generate("b", "x")
        heads = next(iter(first)), next(iter(second))
        del heads
        first, second = client.generate("a", "x"), client.generate("b", "x")
        one, two = iter(first), iter(second)
        for _ in range(40):
            assert next(one).tokens == next(two).tokens
        assert first.wait().stats.worker_pid != second.wait().stats.worker_pid


def test_long_streams_keep_order_beyond_the_window(make_daemon: MakeDaemon) -> None:
    """Hundreds of chunks arrive complete and in order through credit, for many clients at once."""
    daemon = make_daemon({"a": {"chunks": 400, "chunk_s": 0.0}}, active_requests_per_worker=16)
    results: list[tuple[int, ...]] = []

    def ask() -> None:
        with daemon.client() as client:
            results.append(client.generate("a", "x").wait().tokens)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [tuple(range(400))] * 6


def test_queue_is_bounded_and_served_in_order(make_daemon: MakeDaemon) -> None:
    """More requests than places wait in order; more than may wait are refused as overloaded."""
    daemon = make_daemon(
        {"a": {"chunks": 20}}, active_requests_per_worker=1, queued_requests_per_model=4
    )
    with daemon.client() as client:
        client.spawn("a")
        places: list[int] = []
        running = client.generate("a", "x")
        waiting = [
            client.generate("a", "x", on_event=lambda e: places.append(getattr(e, "position", -1)))
            for _ in range(2)
        ]
        refused = client.generate("a", "x")
        with pytest.raises(DflashError) as caught:
            refused.wait()
        assert caught.value.code is ErrorCode.overloaded
        assert caught.value.retryable
        assert caught.value.retry_after_s
        running.wait()
        assert [len(g.wait().tokens) for g in waiting] == [20, 20]
        assert {1, 2} <= set(places)


def test_unknown_model_is_named_with_the_nearest(make_daemon: MakeDaemon) -> None:
    """A model nobody configured is refused with a hint, never mapped to another."""
    daemon = make_daemon({"qwen": {}})
    with daemon.client() as client, pytest.raises(DflashError, match="did you mean qwen") as caught:
        client.generate("qwem", "x").wait()
    assert caught.value.code is ErrorCode.not_found


def test_deadline_applies_while_queued(make_daemon: MakeDaemon) -> None:
    """A request whose time is over while it waits fails with deadline, and is not run."""
    daemon = make_daemon({"a": {"load_s": 3.0}})
    with daemon.client() as client:
        generation = client.generate("a", "x", deadline_s=0.3)
        with pytest.raises(DflashError) as caught:
            generation.wait()
        assert caught.value.code is ErrorCode.deadline
        assert client.status().models[0].queued == 0


def test_status_loads_nothing(make_daemon: MakeDaemon) -> None:
    """Looking at the daemon starts no worker."""
    daemon = make_daemon({"a": {}, "b": {}})
    with daemon.client() as client:
        statuses = [client.status() for _ in range(5)]
    assert {model.state for model in statuses[-1].models} == {"stopped"}
    assert daemon.worker_pids() == []
