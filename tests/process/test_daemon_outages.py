"""The supervisor itself stands still, dies, or finds no room to write; the machine sleeps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.supervisor.doctor import host as doctor

from .daemon_process import DaemonProcess, is_alive, wait_for
from .test_cli_commands import ctl

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}


def stand_still(pids: list[int], for_s: float) -> None:
    """Stop processes for a while: its length is the fault, so nothing can be waited for."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(for_s)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def pid_of(client: Client, number: int = 0) -> int:
    return client.status().workers[number].pid or 0


def test_blocked_supervisor_loses_nothing(make_daemon: MakeDaemon) -> None:
    """Two seconds without the supervisor: streams go on without a gap, no worker is blamed."""
    daemon = make_daemon({"a": {"chunks": 300}, "b": {"load_s": 3.0}}, pong_timeout_s=1.5)
    with daemon.client() as client:
        streaming = client.generate("a", "x")
        head = iter(streaming)
        assert next(head).tokens == (0,)
        waiting = client.generate("b", "x")
        wait_for("it loads", lambda: client.status().models[1].state == "loading")
        pid = pid_of(client)
        stand_still([daemon.child.pid], 2.0)
        assert streaming.wait().tokens == tuple(range(300))
        assert waiting.wait().text
        status = client.status()
        assert (status.workers[0].pid, status.workers[0].restarts) == (pid, 0)
        assert status.workers[1].restarts == 0


def test_machine_that_slept_blames_nobody(make_daemon: MakeDaemon) -> None:
    """All processes stand still longer than any limit: at wake no worker is replaced."""
    daemon = make_daemon(
        {"a": {"chunks": 300}, "b": {"load_s": 3.0, "load_progress": False}},
        ping_interval_s=0.2,
        pong_timeout_s=2.0,
        loading_pong_timeout_s=2.0,
        decode_stall_s=2.0,
        prefill_stall_s=2.0,
        load_stall_s=3.8,
    )
    with daemon.client() as client:
        streaming = client.generate("a", "x")
        head = iter(streaming)
        assert next(head).tokens == (0,)
        waiting = client.generate("b", "x")
        wait_for("it loads", lambda: client.status().models[1].state == "loading")
        stand_still([daemon.child.pid, *daemon.worker_pids()], 5.0)
        assert streaming.wait().tokens == tuple(range(300))
        assert waiting.wait().text
        status = client.status()
        assert [worker.restarts for worker in status.workers] == [0, 0]
        assert status.counters["pauses"] >= 1


@pytest.mark.parametrize("shift_s", [86_400.0, -86_400.0], ids=["ahead", "back"])
def test_clock_that_was_set_ends_nothing(make_daemon: MakeDaemon, shift_s: float) -> None:
    """A jump of the time of day expires nothing: no deadline, no idle model, no worker."""
    daemon = make_daemon(
        {"a": {"chunks": 200}, "b": {}, "c": {"load_s": 1.0}},
        {"b": "idle_ttl_s = 3600"},
        ping_interval_s=0.2,
    )
    with daemon.client() as client:
        client.spawn("b")
        streaming = client.generate("a", "x")
        next(chunks := iter(streaming))
        waiting = client.generate("c", "x", deadline_s=60)
        before = list(client.events())[-1]
        (daemon.home / "clock").write_text(str(shift_s))
        daemon.signal(signal.SIGUSR2)
        assert waiting.wait().text
        assert len(list(chunks)) == 199
        status = client.status()
        assert [worker.restarts for worker in status.workers] == [0, 0, 0]
        assert [model.state for model in status.models] == ["ready", "ready", "ready"]
        assert status.counters.get("pauses", 0) == 0
        after = [event for event in client.events() if event.serial > before.serial]
        assert [e.serial for e in after] == [before.serial + n + 1 for n in range(len(after))]
        told_s = after[-1].at_unix_s - before.at_unix_s
        assert abs(told_s - shift_s) < 60, "events tell the time of day as it was set"
        assert status.uptime_s < 60


def test_supervisor_killed_and_restarted_at_once(make_daemon: MakeDaemon) -> None:
    """The next daemon takes over at once; old workers go within a second, nothing is replayed."""
    daemon = make_daemon({"a": LONG, "b": {"load_s": 60.0}, "c": {}})
    with daemon.client() as client:
        running = client.generate("a", "x")
        head = iter(running)
        next(head)
        queued = client.generate("b", "x")
        wait_for("it loads", lambda: client.status().models[1].state == "loading")
        workers = daemon.worker_pids()
        assert len(workers) == 2
        daemon.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        daemon.wait()
        restarting = threading.Thread(target=daemon.start)
        restarting.start()
        wait_for("old workers are gone", lambda: not any(map(is_alive, workers)), 1.0)
        assert time.monotonic() - killed_at < 1.0
        restarting.join(30)
        for generation in (running, queued):
            with pytest.raises(DflashError) as caught:
                generation.wait()
            assert caught.value.retryable
        # The old connection finds the new daemon, which knows only what it is asked from now on.
        assert client.generate("c", "x").wait().text
        status = client.status()
        assert status.counters["generates"] == 1
        assert {model.name for model in status.models if model.state != "stopped"} == {"c"}
        assert status.pid == daemon.child.pid


@pytest.fixture
def full_disk(make_daemon: MakeDaemon) -> Iterator[Callable[[DaemonProcess], None]]:
    """Makes every write to a file of a daemon and its workers fail, as on a full disk."""
    filled: list[DaemonProcess] = []
    unlimited = (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)

    def fill(daemon: DaemonProcess) -> None:
        filled.append(daemon)
        for pid in (daemon.child.pid, *daemon.worker_pids()):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))

    yield fill
    for daemon in filled:
        if is_alive(daemon.child.pid):
            psutil.Process(daemon.child.pid).rlimit(psutil.RLIMIT_FSIZE, unlimited)


def test_full_disk_stops_neither_daemon_nor_workers(
    make_daemon: MakeDaemon, full_disk: Callable[[DaemonProcess], None]
) -> None:
    """Logs and registry cannot be written: running and new models answer, shutdown is orderly."""
    daemon = make_daemon({"a": {"chunks": 100}, "b": {"last_words": "x" * 1000}})
    with daemon.client() as client:
        streaming = client.generate("a", "x")
        head = iter(streaming)
        next(head)
        full_disk(daemon)
        assert client.generate("b", "x").wait().text
        assert streaming.wait().tokens == tuple(range(100))
        os.kill(pid_of(client, 1), signal.SIGKILL)
        wait_for("its end is known", lambda: not pid_of(client, 1))
        assert client.generate("b", "x").wait().text
        assert client.status().counters.get("internal_errors", 0) == 0
        client.shutdown()
    assert daemon.wait() == 0
    assert list(daemon.runtime_dir.iterdir()) == []


def test_log_that_cannot_be_written_keeps_no_model_from_answering(make_daemon: MakeDaemon) -> None:
    """No room for a worker's log: it runs without one."""
    daemon = make_daemon({"a": {}})
    (daemon.state_dir / "logs" / "a.log").mkdir()
    with daemon.client() as client:
        assert client.generate("a", "x").wait().text
        assert client.status().counters.get("internal_errors", 0) == 0


def test_worker_without_descriptors_is_refused_and_aborts_nothing(make_daemon: MakeDaemon) -> None:
    """No descriptor is left: a new worker fails with the system's reason, others go on."""
    daemon = make_daemon({"a": {}, "b": {}}, backoff_first_s=0.05, failures_before_fatal=2)
    process = psutil.Process(daemon.child.pid)
    hard = process.rlimit(psutil.RLIMIT_NOFILE)[1]
    with daemon.client() as client:
        client.spawn("a")
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), hard))
        with pytest.raises(DflashError, match="Too many open files") as caught:
            client.generate("b", "x").wait()
        assert caught.value.code is ErrorCode.load_failed
        assert client.status().workers[1].state == "fatal"
        assert client.generate("a", "x").wait().text
        process.rlimit(psutil.RLIMIT_NOFILE, (hard, hard))
        client.spawn("b")
        assert client.generate("b", "x").wait().text


def test_a_registry_that_cannot_be_written_is_told(make_daemon: MakeDaemon) -> None:
    """Requests are served; status and doctor name the trouble, which passes when its cause does."""
    daemon = make_daemon({"a": {}})
    (obstacle := daemon.runtime_dir / "workers.new").mkdir()
    with daemon.client() as client:
        assert client.generate("a", "x").wait().tokens
        (problem,) = client.status().problems
        assert str(daemon.runtime_dir / "workers.json") in problem
        assert f"problem: {problem}\n" in ctl(daemon, "status").stdout
        findings = [f for f in doctor.daemon(daemon.runtime_dir) if f.level == "problem"]
        assert [finding.says for finding in findings] == [problem]
        obstacle.rmdir()
        wait_for("it is written", lambda: not client.status().problems)
        assert str(pid_of(client)) in (daemon.runtime_dir / "workers.json").read_text()
