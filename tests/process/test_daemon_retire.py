"""Cancel and retire: what stops, what finishes, and how hard is pressed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dflashd.protocol import Client, DflashError, ErrorCode

from .daemon_process import DaemonProcess, is_alive, wait_for

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}


def pid_of(client: Client) -> int:
    pid = client.status().workers[0].pid
    assert pid
    return pid


def test_cancel_reaches_the_worker(make_daemon: MakeDaemon) -> None:
    """A cancelled request ends as cancelled, and its worker computes it no longer."""
    daemon = make_daemon({"a": LONG})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        next(iter(generation))
        second = client.generate("a", "x")
        generation.cancel()
        generation.cancel()
        assert generation.ended
        wait_for("one is left", lambda: client.status().models[0].active == 1)
        second.cancel()
        wait_for("it is idle", lambda: client.status().models[0].state == "ready")


def test_cancel_while_queued(make_daemon: MakeDaemon) -> None:
    """A request that waits is cancelled at once."""
    daemon = make_daemon({"a": {"load_s": 2.0}})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        wait_for("it waits", lambda: client.status().models[0].queued == 1)
        generation.cancel()
        with pytest.raises(DflashError) as caught:
            generation.wait()
        assert caught.value.code is ErrorCode.cancelled
        assert client.status().models[0].queued == 0


def test_worker_that_ignores_a_cancel_does_not_hold_its_client(make_daemon: MakeDaemon) -> None:
    """The client is answered within the bound, whatever the worker does."""
    daemon = make_daemon(
        {"a": {**LONG, "ignore_cancel": True}}, cancel_timeout_s=0.5, release_timeout_s=1.0
    )
    with daemon.client() as client:
        generation = client.generate("a", "x")
        next(iter(generation))
        pid = pid_of(client)
        generation.cancel()
        assert generation.ended
        wait_for("such a worker is replaced", lambda: not is_alive(pid))


def test_client_that_leaves_is_cancelled_in_the_worker(make_daemon: MakeDaemon) -> None:
    """A client that disappears without a word is noticed, and its request is stopped."""
    daemon = make_daemon({"a": {"chunks": 30, "chunk_s": 1.0}}, keepalive_s=0.2)
    with daemon.client() as watcher:
        watcher.spawn("a")
        leaver = daemon.client()
        generation = leaver.generate("a", "x")
        wait_for("it runs", lambda: watcher.status().models[0].active == 1)
        leaver.close()
        wait_for("it is stopped", lambda: watcher.status().models[0].active == 0, 5)
        del generation


def test_retire_lets_running_requests_finish(make_daemon: MakeDaemon) -> None:
    """Retire drains: the running request completes, then the worker is gone."""
    daemon = make_daemon({"a": {"chunks": 60}})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        next(chunks := iter(generation))
        pid = pid_of(client)
        client.retire("a")
        assert not is_alive(pid)
        assert len(list(chunks)) == 59
        model = client.status().models[0]
        assert (model.state, model.unloads) == ("stopped", 1)


def test_request_during_a_drain_waits_for_the_next_worker(make_daemon: MakeDaemon) -> None:
    """A retired worker gets no new work: a later request is served by a new incarnation."""
    daemon = make_daemon({"a": {"chunks": 60, "chunk_s": 0.02}})
    with daemon.client() as client:
        first = client.generate("a", "x")
        next(chunks := iter(first))
        retiring = threading.Thread(target=client.retire, args=("a",))
        retiring.start()
        wait_for("it drains", lambda: client.status().models[0].state == "draining")
        later = client.generate("a", "x").wait()
        assert len(list(chunks)) == 59
        retiring.join(5)
        assert first.stats
        assert later.stats.worker_pid != first.stats.worker_pid


def test_retire_now_fails_running_requests(make_daemon: MakeDaemon) -> None:
    """``--now`` does not wait: the request fails, the worker goes."""
    daemon = make_daemon({"a": LONG})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        next(chunks := iter(generation))
        client.retire("a", now=True)
        with pytest.raises(DflashError, match="retired"):
            list(chunks)
        assert client.status().models[0].state == "stopped"


def test_drain_is_bounded_and_then_escalates(make_daemon: MakeDaemon) -> None:
    """A worker that ignores the polite stop and SIGTERM is killed, within the stated times."""
    daemon = make_daemon(
        {"a": {**LONG, "ignore_stop": True, "ignore_term": True}},
        drain_timeout_s=0.5,
        stop_timeout_s=0.5,
        terminate_timeout_s=0.5,
    )
    with daemon.client() as client:
        generation = client.generate("a", "x")
        next(chunks := iter(generation))
        pid = pid_of(client)
        client.retire("a")
        assert not is_alive(pid)
        with pytest.raises(DflashError, match="retired"):
            list(chunks)
    log = daemon.log.read_text()
    assert "status=-9" in log


def test_retire_now_while_loading_ends_the_load(make_daemon: MakeDaemon) -> None:
    """``--now`` waits for no load: the model is gone, and who waited for it is told."""
    daemon = make_daemon({"a": {"load_s": 60.0}})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        wait_for("it loads", lambda: client.status().models[0].state == "loading")
        client.retire("a", now=True)
        with pytest.raises(DflashError, match="retired"):
            generation.wait()
        assert daemon.worker_pids() == []


def test_retire_while_loading_keeps_what_was_promised(make_daemon: MakeDaemon) -> None:
    """Requests accepted before a retire are served when the load is done; then the worker goes."""
    daemon = make_daemon({"a": {"load_s": 1.0}})
    with daemon.client() as client:
        before = client.generate("a", "x")
        wait_for("it waits", lambda: client.status().models[0].queued == 1)
        wait_for("it loads", lambda: client.status().models[0].state == "loading")
        client.retire("a")
        assert before.ended
        assert before.wait().text
        assert client.status().models[0].state == "stopped"
        after = client.generate("a", "x").wait()
        assert after.stats.worker_pid != before.wait().stats.worker_pid


def test_retired_stays_down(make_daemon: MakeDaemon) -> None:
    """An operator's stop is not undone: without a request nothing starts again."""
    daemon = make_daemon({"a": {}}, backoff_first_s=0.05)
    with daemon.client() as client:
        client.spawn("a")
        client.retire("a")
        client.retire("a")
        assert client.status().models[0].state == "stopped"
        assert client.status().workers[0].epoch == 1
