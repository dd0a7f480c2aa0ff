"""Start and end of the daemon itself: what it refuses, and what it leaves."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dflashd.protocol import DflashError, ErrorCode
from dflashd.supervisor.errors import DaemonError
from dflashd.supervisor.instance_lock import InstanceLock
from dflashd.supervisor.processes.registry import MARKER, ProcessRegistry, started_s

from .daemon_process import FAKE_DAEMON, DaemonProcess, is_alive, wait_for

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}


def pids(daemon: DaemonProcess, count: int) -> list[int]:
    return wait_for(
        "workers", lambda: [*daemon.worker_pids()] * (len(daemon.worker_pids()) == count)
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_in_order_and_leaves_nothing(
    make_daemon: MakeDaemon, number: signal.Signals
) -> None:
    """SIGTERM or SIGINT: running requests finish, then no process, socket or lock is left."""
    daemon = make_daemon({"a": {"chunks": 60}, "b": {}})
    with daemon.client() as client:
        client.spawn("b")
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        workers = pids(daemon, 2)
        daemon.signal(number)
        assert len(list(chunks)) == 59
    assert daemon.wait() == 0
    assert not any(map(is_alive, workers))
    assert list(daemon.runtime_dir.iterdir()) == []


def test_stop_refuses_new_work_and_bounds_the_drain(make_daemon: MakeDaemon) -> None:
    """While it stops, new requests are refused as shutting_down; endless ones are cut off."""
    daemon = make_daemon({"a": LONG}, shutdown_drain_s=1.0)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        daemon.signal(signal.SIGTERM)
        wait_for("it drains", lambda: client.status().state == "draining")
        with pytest.raises(DflashError) as caught:
            client.generate("a", "x").wait()
        assert caught.value.code is ErrorCode.shutting_down
        with pytest.raises(DflashError) as caught:
            for _ in chunks:
                pass
        assert caught.value.code is ErrorCode.shutting_down
    assert daemon.wait() == 0


def test_second_signal_shortens_and_third_kills(make_daemon: MakeDaemon) -> None:
    """Each further signal presses harder; a worker that ignores everything is killed."""
    daemon = make_daemon({"a": {**LONG, "ignore_stop": True, "ignore_term": True}})
    with daemon.client() as client:
        next(iter(client.generate("a", "x")))
        keep = client.generate("a", "x")
        worker = pids(daemon, 1)[0]
        began = time.monotonic()
        for level in (1, 2, 3):
            daemon.signal(signal.SIGTERM)
            text = f"shutdown_asked level={level}"
            wait_for(text, lambda text=text: text in daemon.log.read_text())
        assert daemon.wait(5) == 0
        assert time.monotonic() - began < 5
        assert not is_alive(worker)
        del keep


def test_shutdown_command_answers_before_the_sockets_close(make_daemon: MakeDaemon) -> None:
    """``shutdown`` returns when all workers are gone."""
    daemon = make_daemon({"a": {}})
    with daemon.client() as client:
        client.spawn("a")
        workers = pids(daemon, 1)
        client.shutdown()
        assert not any(map(is_alive, workers))
    assert daemon.wait() == 0
    assert list(daemon.runtime_dir.iterdir()) == []


def test_killed_daemon_takes_its_workers_along_and_can_be_restarted(
    make_daemon: MakeDaemon,
) -> None:
    """SIGKILL of the daemon: workers are gone within a second; a new one starts at once."""
    daemon = make_daemon({"a": LONG, "b": {"grandchild": True}})
    with daemon.client() as client:
        client.spawn("b")
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        workers = pids(daemon, 2)
        grandchildren = [c.pid for w in workers for c in psutil.Process(w).children()]
        assert len(grandchildren) == 1
        daemon.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        wait_for("workers gone", lambda: not any(map(is_alive, workers)), 1.0)
        assert time.monotonic() - killed_at < 1.0
        with pytest.raises(DflashError):
            for _ in chunks:
                pass
    daemon.wait()
    assert any(daemon.runtime_dir.glob("*.sock"))
    daemon.start()
    # What a worker had started and left behind is swept by the next daemon.
    wait_for("grandchildren gone", lambda: not any(map(is_alive, grandchildren)), 2.0)
    with daemon.client() as client:
        assert client.generate("b", "x").wait().text
    assert "stale_socket_removed" in daemon.log.read_text()


def test_orphan_that_survived_is_swept_and_a_stranger_is_not(make_daemon: MakeDaemon) -> None:
    """At start, a worker left by a dead daemon is killed; a process that is not ours never."""
    daemon = make_daemon({"a": {}})
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    marked = {**os.environ, "DFLASHD_INSTANCE": "dead"}
    orphan = subprocess.Popen(sleeper, env=marked, start_new_session=True)
    stranger = subprocess.Popen(sleeper, start_new_session=True)
    entries = ",".join(
        f'{{"pid":{pid},"started_s":{started_s(psutil.Process(pid))},"instance":"dead","worker":"a"}}'
        for pid in (orphan.pid, stranger.pid)
    )
    (daemon.runtime_dir / "workers.json").write_text(f"[{entries}]")
    try:
        daemon.start()
        assert orphan.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        orphan.kill()
        stranger.kill()
        stranger.wait()


def test_second_daemon_is_refused_with_a_sentence(make_daemon: MakeDaemon) -> None:
    """Another daemon on the same directory is refused, and the first one notices nothing."""
    daemon = make_daemon({"a": {}})
    second = subprocess.run(
        [sys.executable, str(FAKE_DAEMON), str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 75
    assert f"pid {daemon.child.pid}" in second.stderr
    assert "dflashctl shutdown" in second.stderr
    with daemon.client() as client:
        assert client.generate("a", "x").wait().text


def test_directory_and_sockets_are_private(make_daemon: MakeDaemon) -> None:
    """Only the owner can reach the daemon: 0700 directories, 0600 sockets, locks and logs."""
    daemon = make_daemon({"models/a:1": {}})
    with daemon.client() as client:
        client.spawn("models/a:1")
    for folder in (daemon.runtime_dir, daemon.state_dir, daemon.state_dir / "logs"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for entry in folder.iterdir():
            assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0, entry
    assert [p.name for p in (daemon.state_dir / "logs").iterdir()] == ["models%2Fa%3A1.log"]


def test_file_in_a_sockets_place_is_not_removed(make_daemon: MakeDaemon) -> None:
    """What is not a socket is not deleted: the daemon refuses with the path."""
    daemon = make_daemon({"a": {}})
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    (daemon.runtime_dir / "requests.sock").write_text("mine")
    again = subprocess.run(
        [sys.executable, str(FAKE_DAEMON), str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert again.returncode == 1
    assert "requests.sock is not a socket" in again.stderr
    assert (daemon.runtime_dir / "requests.sock").read_text() == "mine"


def test_directory_of_others_is_not_touched(make_daemon: MakeDaemon) -> None:
    """A directory that is open and holds other files is refused, not closed to its users."""
    daemon = make_daemon({"a": {}})
    shared = daemon.home / "shared"
    shared.mkdir(mode=0o755)
    (shared / "theirs").touch()
    daemon.config.write_text(f'[daemon]\nruntime_dir = "{shared}"\n')
    result = subprocess.run(
        [sys.executable, str(FAKE_DAEMON), str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert "a directory of its own" in result.stderr
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_too_long_directory_is_one_sentence(make_daemon: MakeDaemon) -> None:
    """A runtime directory too long for sockets is refused before anything starts."""
    daemon = make_daemon({"a": {}})
    long = daemon.home / ("x" * 120)
    daemon.config.write_text(f'[daemon]\nruntime_dir = "{long}"\n')
    result = subprocess.run(
        [sys.executable, str(FAKE_DAEMON), str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 78
    assert "the limit is" in result.stderr
    assert "Traceback" not in result.stderr


def test_stale_socket_without_a_daemon_is_taken_over(make_daemon: MakeDaemon) -> None:
    """A socket file that nobody listens at does not keep a daemon from starting."""
    daemon = make_daemon({"a": {}})
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(daemon.runtime_dir / "workers.sock"))
    daemon.start()
    with daemon.client() as client:
        assert client.generate("a", "x").wait().text


def test_nobody_reading_the_ready_line_stops_nothing(make_daemon: MakeDaemon) -> None:
    """A caller that has closed our output by the time we are ready does not end the daemon."""
    daemon = make_daemon({"a": {}})
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, str(FAKE_DAEMON), str(daemon.config)]
    with subprocess.Popen(command, stdout=write_end, env=daemon.environment) as child:
        os.close(write_end)
        with daemon.client() as client:
            client.shutdown()
        assert child.wait(15) == 0


def test_lock_that_cannot_be_signed_is_an_error_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk under the runtime directory: a sentence, and no lock file left."""

    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DaemonError, match="No space"), InstanceLock(tmp_path, "x"):
        pass
    assert not list(tmp_path.iterdir())


def test_orphan_is_known_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wall clock that jumps between two daemons neither saves an orphan nor dooms a stranger."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    marked = {**os.environ, MARKER: "dead"}
    orphan = subprocess.Popen(sleeper, env=marked, start_new_session=True)
    try:
        # Linux tells of an environment only when all of the start is over.
        wait_for("it has its environment", psutil.Process(orphan.pid).environ)
        ProcessRegistry(tmp_path, "dead").add(orphan.pid, "a")
        boot_s = psutil.boot_time()
        # What Linux does when the clock is set: every start moves with the boot.
        monkeypatch.setattr("psutil.boot_time", lambda: boot_s + 86_400)
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_s + 86_400, raising=False)
        assert [entry.pid for entry in ProcessRegistry(tmp_path, "next").sweep()] == [orphan.pid]
        assert orphan.wait(30) == -signal.SIGKILL
    finally:
        orphan.kill()
        orphan.wait()
