"""What a service manager hears from a real daemon, through a real datagram socket."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from dflashd.supervisor.service.notify import ServiceNotifier

from .daemon_process import DaemonProcess


class Manager:
    """Listens as systemd does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def hear(self, limit_s: float = 30.0) -> dict[str, str]:
        """The next message; empty if none comes in time."""
        self._socket.settimeout(limit_s)
        try:
            text = self._socket.recv(65536).decode()
        except TimeoutError:
            return {}
        return dict(part.split("=", 1) for part in text.splitlines())

    def hear_of(self, key: str) -> dict[str, str]:
        """The next message that has ``key``."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if key in (said := self.hear()):
                return said
        pytest.fail(f"never heard {key}")

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def managed(daemon: DaemonProcess, **environment: str) -> Generator[Manager]:
    """The daemon started again, this time by a manager."""
    daemon.signal(signal.SIGTERM)
    daemon.wait()
    manager = Manager(daemon.home / "notify")
    daemon.environment |= {"NOTIFY_SOCKET": str(manager.path), **environment}
    try:
        daemon.start()
        yield manager
    finally:
        manager.close()


@pytest.fixture
def daemon() -> Generator[DaemonProcess]:
    process = DaemonProcess({"a": {}})
    try:
        yield process
    finally:
        process.close()


def test_a_manager_hears_of_start_reload_and_stop(daemon: DaemonProcess) -> None:
    """READY when clients may come, RELOADING and READY around a reload, STOPPING at a signal."""
    with managed(daemon) as manager:
        ready = manager.hear_of("READY")
        assert ready["MAINPID"] == str(daemon.child.pid)
        assert "is ready" in ready["STATUS"]
        daemon.signal(signal.SIGHUP)
        assert manager.hear_of("RELOADING")["MONOTONIC_USEC"].isdecimal()
        assert manager.hear_of("READY")["STATUS"] == "serving with the new configuration"
        daemon.config.write_text("nonsense")
        daemon.signal(signal.SIGHUP)
        assert manager.hear_of("RELOADING")
        assert "refused" in manager.hear_of("READY")["STATUS"]
        daemon.signal(signal.SIGTERM)
        assert manager.hear_of("STOPPING")
        assert daemon.wait() == 0


def test_the_watchdog_is_fed_by_the_working_loop(daemon: DaemonProcess) -> None:
    """A loop that is blocked, in a process that lives, is silent; once it works it is heard."""
    daemon.environment["DFLASHD_FAKE_BLOCK_S"] = "4"
    with managed(daemon, WATCHDOG_USEC="1000000") as manager:
        for _ in range(3):
            manager.hear_of("WATCHDOG")
        daemon.signal(signal.SIGUSR1)
        # What was sent before the signal arrived may still lie in the socket.
        while manager.hear(2.0):
            pass
        assert daemon.child.poll() is None
        assert manager.hear_of("WATCHDOG") == {"WATCHDOG": "1"}


def test_workers_are_not_told_of_the_manager(daemon: DaemonProcess) -> None:
    """Who reads a worker's environment finds no socket to speak for the daemon."""
    with managed(daemon, WATCHDOG_USEC="30000000"), daemon.client() as client:
        client.spawn("a")
        (pid,) = daemon.worker_pids()
        names = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"NOTIFY_SOCKET" not in names
    assert b"WATCHDOG" not in names


def test_a_manager_that_does_not_read_stops_nothing(daemon: DaemonProcess) -> None:
    """More than its socket holds is lost to the manager; clients notice nothing."""
    with managed(daemon), daemon.client() as client:
        for _ in range(200):
            client.reload()
        assert client.status().models[0].name == "a"


@pytest.mark.parametrize(
    ("environ", "beat_s"),
    [
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "2000000"}, 1.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 1.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None),
        ({"NOTIFY_SOCKET": "relative"}, None),
        ({}, None),
    ],
)
def test_the_environment_is_read_once_and_taken(
    environ: dict[str, str], beat_s: float | None
) -> None:
    """Half the watchdog's time, only if it is meant for us; nothing stays for children."""
    notifier = ServiceNotifier.take(environ, 7)
    assert (notifier._beat_s, environ) == (beat_s, {})
    notifier.close()
