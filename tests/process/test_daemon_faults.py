"""What happens to requests, workers and other models when a worker fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from dflashd.protocol import DflashError, ErrorCode

from .daemon_process import DaemonProcess, is_alive, wait_for

pytestmark = pytest.mark.slow

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}


def test_worker_killed_mid_stream_fails_its_requests_at_once(make_daemon: MakeDaemon) -> None:
    """SIGKILL of a worker: its request fails with worker_lost at once, others go on, it returns."""
    daemon = make_daemon({"a": LONG, "b": {"chunks": 200}}, backoff_first_s=0.2)
    with daemon.client() as client:
        client.spawn("a")
        client.spawn("b")
        other = client.generate("b", "x")
        victim = client.generate("a", "x")
        chunks = iter(victim)
        next(chunks)
        pid = client.status().workers[0].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises(DflashError) as caught:
            for _ in chunks:
                pass
        assert time.monotonic() - killed_at < 1.0
        assert caught.value.code is ErrorCode.worker_lost
        assert caught.value.retryable
        assert "SIGKILL" in caught.value.message
        again = iter(client.generate("a", "x"))
        assert next(again).tokens == (0,)
        assert client.status().workers[0].pid != pid
        assert client.status().workers[0].restarts == 1
        assert len(other.wait().tokens) == 200


def test_crash_loop_ends_in_fatal_with_the_last_words(make_daemon: MakeDaemon) -> None:
    """A worker that cannot stay up is given up with the reason; an operator's spawn tries again."""
    daemon = make_daemon(
        {"a": {"exit_at_load": 7, "last_words": "Abort trap: metal"}, "b": {}},
        backoff_first_s=0.05,
        failures_before_fatal=3,
    )
    with daemon.client() as client:
        generation = client.generate("a", "x")
        with pytest.raises(DflashError, match="Abort trap: metal") as caught:
            generation.wait()
        assert caught.value.code is ErrorCode.load_failed
        worker = client.status().workers[0]
        assert worker.state == "fatal"
        assert worker.epoch == 3
        assert "exit status 7" in worker.reason
        with pytest.raises(DflashError, match="dflashctl spawn a"):
            client.generate("a", "x").wait()
        assert client.status().workers[0].epoch == 3
        with pytest.raises(DflashError, match="exit status 7"):
            client.spawn("a")
        assert client.status().workers[0].epoch >= 4
        assert client.generate("b", "x").wait().text


def test_exit_78_is_not_tried_again(make_daemon: MakeDaemon) -> None:
    """A worker that finds its configuration unusable is not restarted."""
    daemon = make_daemon({"a": {"exit_at_start": 78, "last_words": "no such dtype"}})
    with daemon.client() as client:
        with pytest.raises(DflashError, match="no such dtype") as caught:
            client.generate("a", "x").wait()
        assert caught.value.code is ErrorCode.load_failed
        assert client.status().workers[0].state == "fatal"
        assert client.status().workers[0].epoch == 1


def test_failed_load_tells_why_and_does_not_loop(make_daemon: MakeDaemon) -> None:
    """A load that cannot work fails its waiters with the worker's own reason, once."""
    daemon = make_daemon({"a": {"load_error": ["unsupported", "Laguna drafts are not known"]}})
    with daemon.client() as client:
        for ask in (lambda: client.generate("a", "x").wait(), lambda: client.spawn("a")):
            with pytest.raises(DflashError, match="Laguna") as caught:
                ask()
            assert caught.value.code in (ErrorCode.unsupported, ErrorCode.load_failed)
        wait_for("its worker is gone", lambda: client.status().workers[0].state == "stopped")
        model = client.status().models[0]
        assert (model.state, model.reason) == ("fatal", "Laguna drafts are not known")
        assert daemon.worker_pids() == []


def test_silent_worker_is_replaced(make_daemon: MakeDaemon) -> None:
    """A worker that answers no pings is killed, and its request fails with worker_lost."""
    daemon = make_daemon({"a": {**LONG, "deaf": True}}, pong_timeout_s=1.0, ping_interval_s=0.2)
    with daemon.client() as client, pytest.raises(DflashError, match="no ping") as caught:
        client.generate("a", "x").wait()
    assert caught.value.code is ErrorCode.worker_lost


def test_standing_engine_is_noticed_though_pings_are_answered(make_daemon: MakeDaemon) -> None:
    """Health is progress: an engine that stands still with work to do is replaced."""
    daemon = make_daemon({"a": {**LONG, "stuck_after": 3}}, decode_stall_s=1.0)
    with daemon.client() as client, pytest.raises(DflashError, match="made no step") as caught:
        client.generate("a", "x").wait()
    assert caught.value.code is ErrorCode.worker_lost


def test_stopped_process_is_replaced(make_daemon: MakeDaemon) -> None:
    """SIGSTOP of a worker is a hang like any other."""
    daemon = make_daemon({"a": LONG}, pong_timeout_s=1.0, ping_interval_s=0.2)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        pid = client.status().workers[0].pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DflashError) as caught:
            for _ in chunks:
                pass
        assert caught.value.code is ErrorCode.worker_lost
        wait_for("the stopped process is gone", lambda: not is_alive(pid))


def test_stalled_load_is_ended(make_daemon: MakeDaemon) -> None:
    """A load without progress is ended by its stall timer; one with progress may take longer."""
    daemon = make_daemon(
        {"a": {"load_s": 60.0, "load_progress": False}, "b": {"load_s": 2.5}}, load_stall_s=1.0
    )
    with daemon.client() as client:
        with pytest.raises(DflashError, match="no progress loading"):
            client.spawn("a")
        client.spawn("b")


def test_worker_that_never_registers_is_ended(make_daemon: MakeDaemon) -> None:
    """A process that does not report in time is killed and named as the reason."""
    daemon = make_daemon({"a": {"register": False}}, register_timeout_s=1.0)
    with daemon.client() as client, pytest.raises(DflashError, match="register"):
        client.spawn("a")


@pytest.mark.parametrize("flags", [{"skip_seq": 2}, {"flood": True}])
def test_worker_that_breaks_order_or_credit_fails_only_that_request(
    make_daemon: MakeDaemon, flags: dict[str, object]
) -> None:
    """A gap, or more chunks than were allowed, ends the request with one typed error."""
    daemon = make_daemon({"a": {"chunks": 500, "chunk_s": 0.0, **flags}})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        if "flood" in flags:
            wait_for("it ended", lambda: generation.ended)
        with pytest.raises(DflashError) as caught:
            generation.wait()
        assert caught.value.code is ErrorCode.internal
        assert client.status().workers[0].state in ("ready", "busy")


def test_grandchildren_end_with_their_worker(make_daemon: MakeDaemon) -> None:
    """What a worker has started does not outlive it, and does not delay its end."""
    daemon = make_daemon({"a": {"grandchild": True}})
    with daemon.client() as client:
        client.spawn("a")
        pid = client.status().workers[0].pid
        assert pid
        children = [child.pid for child in psutil.Process(pid).children()]
        assert len(children) == 1
        os.kill(pid, signal.SIGKILL)
        wait_for("the grandchild is gone", lambda: not is_alive(children[0]), 5)


def test_out_of_memory_at_load_is_told_and_not_final(make_daemon: MakeDaemon) -> None:
    """A load without room fails its request as out_of_memory; later there may be room."""
    flags = {"load_error": ["out_of_memory", "12 GB are needed, 3 GB are free"]}
    daemon = make_daemon({"a": flags, "b": {"chunks": 200}}, backoff_first_s=0.05)
    with daemon.client() as client:
        client.spawn("b")
        other = client.generate("b", "x")
        with pytest.raises(DflashError, match="12 GB are needed") as caught:
            client.generate("a", "x").wait()
        assert caught.value.code is ErrorCode.out_of_memory
        assert client.status().workers[0].state != "fatal"
        with pytest.raises(DflashError):
            client.generate("a", "x").wait()
        assert len(other.wait().tokens) == 200


def test_out_of_memory_at_decode_ends_that_request_only(make_daemon: MakeDaemon) -> None:
    """A request that runs out of memory fails as that, and its worker serves the next."""
    flags = {"failure": ["out_of_memory", "no room for another block"]}
    daemon = make_daemon({"a": flags})
    with daemon.client() as client:
        workers = set[int | None]()
        for _ in range(2):
            with pytest.raises(DflashError, match="no room for another block") as caught:
                client.generate("a", "x").wait()
            assert caught.value.code is ErrorCode.out_of_memory
            workers.add(client.status().workers[0].pid)
        assert len(workers) == 1
        assert client.status().workers[0].restarts == 0


def test_stubborn_worker_and_its_grandchild_are_killed_in_time(make_daemon: MakeDaemon) -> None:
    """Neither ignoring SIGTERM nor a grandchild that holds its pipes delays the end of a retire."""
    stubborn = {"ignore_stop": True, "ignore_term": True, "grandchild": True}
    daemon = make_daemon({"a": stubborn, "b": LONG}, stop_timeout_s=0.5, terminate_timeout_s=0.5)
    with daemon.client() as client:
        client.spawn("a")
        other = iter(client.generate("b", "x"))
        next(other)
        pid = client.status().workers[0].pid
        assert pid
        grandchild = psutil.Process(pid).children()[0].pid
        client.retire("a")
        assert not is_alive(pid)
        wait_for("the grandchild is gone", lambda: not is_alive(grandchild))
        status = client.status()
        assert (status.workers[0].state, status.counters["workers_killed"]) == ("stopped", 1)
        next(other)
