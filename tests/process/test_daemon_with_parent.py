"""A daemon that a host application started is gone when the host is, however the host ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflashd.protocol import Daemon

from ..tiny import make_target
from .daemon_process import is_alive, wait_for

HOST = Path(__file__).with_name("daemon_host.py")
GONE_S = 10.0


@dataclass(frozen=True)
class Household:
    """A host that can be killed, its daemon, and the daemon's worker."""

    host: subprocess.Popen[str]
    daemon_pid: int
    worker_pid: int


@contextmanager
def household(folder: Path, mode: str) -> Generator[Household]:
    target = make_target(folder / "target")
    with (folder / "host.log").open("wb") as log:
        host = subprocess.Popen(
            [sys.executable, str(HOST), str(folder), str(target), mode],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert host.stdout is not None
    line = host.stdout.readline()
    assert line, (folder / "host.log").read_text()
    daemon, worker, heir = map(int, line.split())
    try:
        yield Household(host, daemon, worker)
    finally:
        host.kill()
        for pid in (daemon, worker, heir):
            if pid and is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        host.stdout.close()
        host.wait(GONE_S)


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_killed_host_takes_its_daemon_along(short_dir: Path, mode: str) -> None:
    """SIGKILL of the host in the middle of a stream: no process, socket or lock is left, even if
    a child of the host holds its pipes open.
    """
    with household(short_dir, mode) as living:
        assert is_alive(living.worker_pid)
        living.host.kill()
        wait_for("the daemon is gone", lambda: not is_alive(living.daemon_pid), GONE_S)
        wait_for("the worker is gone", lambda: not is_alive(living.worker_pid), 1.0)
        assert list((short_dir / "run").iterdir()) == []
        assert "parent_gone" in (short_dir / "daemon.log").read_text()


def test_a_stdin_without_an_end_is_refused(short_dir: Path) -> None:
    """Told to stay with a parent that holds no pipe, the daemon says so and leaves nothing."""
    environment = {**os.environ, "DFLASHD_RUNTIME_DIR": str(short_dir / "run")}
    environment["DFLASHD_STATE_DIR"] = str(short_dir / "state")
    command = [sys.executable, "-m", "dflashd.supervisor.serve", "serve", "--with-parent"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "needs a stdin that ends" in done.stderr
    assert list((short_dir / "run").iterdir()) == []


def test_files_beside_the_host_are_not_the_daemons(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon starts whatever modules lie in the folder that its host works in."""
    (short_dir / "zmq.py").write_text("raise ImportError('not this one')\n")
    monkeypatch.chdir(short_dir)
    config, run = short_dir / "d.toml", short_dir / "run"
    config.write_text(f'[daemon]\nruntime_dir = "{run}"\nstate_dir = "{short_dir / "state"}"\n')
    with (
        Daemon(config, runtime_dir=run, log=short_dir / "log") as daemon,
        daemon.client() as client,
    ):
        assert client.status().pid == daemon.pid
