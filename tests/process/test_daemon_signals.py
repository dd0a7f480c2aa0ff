"""The daemon's end under pressure: terminals, load, repeated signals, commands that wait."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from dflashd.protocol import Client, DflashError, ErrorCode

from .daemon_process import FAKE_DAEMON, DaemonProcess, is_alive, wait_for
from .test_cli_commands import ctl, start

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}


TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Terminal:
    """The daemon as the foreground process of a terminal of its own; Ctrl-C is a key there."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.master, slave = pty.openpty()
        self.child = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, str(FAKE_DAEMON), str(daemon.config)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=daemon.environment,
        )
        os.close(slave)
        self.text = ""
        os.set_blocking(self.master, False)
        wait_for("it is ready", lambda: "is ready" in self.read())

    def read(self) -> str:
        """All it has shown."""
        with contextlib.suppress(OSError):
            self.text += os.read(self.master, 65536).decode()
        return self.text

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def wait(self, limit_s: float) -> int:
        """Wait for its end, reading what it shows; its exit status."""
        wait_for("its end", lambda: (self.read(), self.child.poll())[1] is not None, limit_s)
        return self.child.wait()

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.master)


@pytest.fixture
def terminal(make_daemon: MakeDaemon):
    """A maker of daemons in terminals."""
    made: list[Terminal] = []

    def make(daemon: DaemonProcess) -> Terminal:
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        made.append(Terminal(daemon))
        return made[-1]

    yield make
    for shown in made:
        shown.close()


def test_ctrl_c_in_a_terminal_drains_and_a_second_one_ends_it(
    make_daemon: MakeDaemon, terminal: Callable[[DaemonProcess], Terminal]
) -> None:
    """The key reaches the daemon, not its workers: a stream goes on; pressed again, it ends."""
    daemon = make_daemon({"a": LONG}, shutdown_drain_s=30)
    shown = terminal(daemon)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        workers = [child.pid for child in psutil.Process(shown.child.pid).children()]
        shown.press_ctrl_c()
        wait_for("it drains", lambda: client.status().state == "draining")
        for _ in range(20):
            next(chunks)
        assert all(map(is_alive, workers))
        shown.press_ctrl_c()
        with pytest.raises(DflashError) as caught:
            for _ in chunks:
                pass
        assert caught.value.code is ErrorCode.shutting_down
    assert shown.wait(5) == 0
    assert not any(map(is_alive, workers))
    assert "Traceback" not in shown.text
    assert list(daemon.runtime_dir.iterdir()) == []


def test_stop_under_load_answers_each_request_once(make_daemon: MakeDaemon) -> None:
    """SIGTERM with two models full and queues: whoever runs finishes, the others are refused."""
    daemon = make_daemon({"a": {"chunks": 40}, "b": {"chunks": 40}}, active_requests_per_worker=4)
    with daemon.client() as client:
        asked = [client.generate(name, "x") for _ in range(12) for name in "ab"]
        wait_for("all run or wait", lambda: sum(m.active for m in client.status().models) == 8)
        daemon.signal(signal.SIGTERM)
        outcomes = Counter(map(outcome, asked))
    assert daemon.wait() == 0
    assert outcomes["done"] >= 8
    assert outcomes["done"] + outcomes["shutting_down"] == 24
    assert list(daemon.runtime_dir.iterdir()) == []


def outcome(generation) -> str:
    try:
        generation.wait()
    except DflashError as error:
        return str(error.code)
    return "done"


@pytest.mark.parametrize(
    ("fault", "stage"), [({"load_s": 60}, "loading"), ({"register": False}, "registering")]
)
def test_stop_while_a_model_loads(
    make_daemon: MakeDaemon, fault: dict[str, object], stage: str
) -> None:
    """A load that would take a minute does not hold up the end."""
    daemon = make_daemon({"a": fault})
    with daemon.client() as client:
        asked = client.generate("a", "x")
        wait_for("it starts", lambda: stage in {w.state for w in client.status().workers})
        daemon.signal(signal.SIGTERM)
        assert outcome(asked) == "shutting_down"
    assert daemon.wait() == 0


def test_second_signal_presses_workers_that_were_asked_politely(make_daemon: MakeDaemon) -> None:
    """A worker that ignores the polite stop has been given its time: a second signal ends that."""
    daemon = make_daemon({"a": {"ignore_stop": True}}, stop_timeout_s=60)
    with daemon.client() as client:
        client.spawn("a")
        daemon.signal(signal.SIGTERM)
        wait_for("it is asked", lambda: client.status().workers[0].state == "stopping")
        daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_stubborn_worker_takes_the_stated_time(make_daemon: MakeDaemon) -> None:
    """Drain, polite stop and SIGTERM each take their limit, and no longer; then it is killed."""
    daemon = make_daemon(
        {"a": {**LONG, "ignore_stop": True, "ignore_term": True}},
        shutdown_drain_s=0.4,
        stop_timeout_s=0.4,
        terminate_timeout_s=0.4,
    )
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        began = time.monotonic()
        client.shutdown()
    assert daemon.wait() == 0
    assert 1.2 <= time.monotonic() - began < 4


def test_shutdown_command_says_what_it_waits_for(make_daemon: MakeDaemon) -> None:
    """The command names what still runs, and returns when the daemon's place is free."""
    daemon = make_daemon({"a": LONG, "b": {}}, shutdown_drain_s=1)
    with daemon.client() as client:
        client.spawn("b")
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        result = ctl(daemon, "shutdown")
        assert result.returncode == 0
        assert "1 running request of a" in result.stderr
        assert result.stdout == "dflashd has stopped\n"
        assert list(daemon.runtime_dir.iterdir()) == []
    assert daemon.wait() == 0


def test_ctrl_c_leaves_the_shutdown_going_on(make_daemon: MakeDaemon) -> None:
    """Whoever stops waiting for a shutdown does not stop the shutdown, and is told so."""
    daemon = make_daemon({"a": LONG}, shutdown_drain_s=2)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        command = start(daemon, "shutdown")
        wait_for("it drains", lambda: client.status().state == "draining")
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=10)
        assert command.returncode == 130
        assert "goes on" in told
        assert "Traceback" not in told
    assert daemon.wait() == 0


def test_shutdown_now_shortens_one_that_drains(make_daemon: MakeDaemon) -> None:
    """--now after a plain shutdown does not wait for the drain; both commands end well."""
    daemon = make_daemon({"a": LONG}, shutdown_drain_s=60)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        first = start(daemon, "shutdown")
        wait_for("it drains", lambda: client.status().state == "draining")
        assert ctl(daemon, "shutdown", "--now").returncode == 0
        first.communicate(timeout=10)
        assert first.returncode == 0
    assert daemon.wait() == 0


def test_client_that_came_for_status_sees_the_drain(make_daemon: MakeDaemon) -> None:
    """During a drain the daemon still tells of itself, and takes no work of any kind."""
    daemon = make_daemon({"a": LONG, "b": {}}, shutdown_drain_s=3)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        daemon.signal(signal.SIGTERM)
        wait_for("it drains", lambda: client.status().state == "draining")
        with Client(daemon.runtime_dir) as other, pytest.raises(DflashError) as caught:
            other.spawn("b")
        assert caught.value.code is ErrorCode.shutting_down
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
