"""A worker dies with its supervisor, whatever it is doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflashd.protocol.messages import GenerateBody, LoadBody

from ..tiny import Shape, make_target
from .scripted_supervisor import LIMIT_S, ScriptedSupervisor, is_gone, wait_until

PARENT = Path(__file__).with_name("worker_parent.py")
GONE_S = 1.0


@dataclass
class Family:
    """A parent that can be killed, and its worker under a scripted supervisor's socket."""

    parent: subprocess.Popen[str]
    worker_pid: int
    supervisor: ScriptedSupervisor


@contextmanager
def family(stdin: str) -> Generator[Family]:
    """Start parent and worker; ``held`` keeps the worker's stdin open beyond the parent's end."""
    read_fd, write_fd = os.pipe()
    with ScriptedSupervisor() as supervisor, (supervisor.folder / "log").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, str(PARENT), stdin, str(read_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[read_fd],
            text=True,
        )
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps(supervisor.environment()) + "\n")
        parent.stdin.flush()
        pid = int(parent.stdout.readline())
        try:
            yield Family(parent, pid, supervisor)
        finally:
            parent.kill()
            parent.communicate()
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
            os.close(read_fd)
            os.close(write_fd)


def busy(family: Family, folder: Path) -> None:
    """Bring the worker into the middle of a long prefill."""
    make_target(folder, Shape(context_tokens=200_000))
    family.supervisor.register()
    family.supervisor.load("m", LoadBody(target=str(folder), prefill_chunk_tokens=2048))
    family.supervisor.assign("m", GenerateBody(tokens=(5, 6, 7, 8) * 40_000))
    family.supervisor.until_steps(0)


@pytest.mark.parametrize("stdin", ["pipe", "held"])
def test_lifeline_supervisor_killed_in_long_prefill(stdin: str, tmp_path: Path) -> None:
    """SIGKILL of the supervisor ends a computing worker within a second, pipe or no pipe."""
    with family(stdin) as living:
        busy(living, tmp_path / "t")
        living.parent.kill()
        wait_until(lambda: is_gone(living.worker_pid), GONE_S, "the worker is gone")


def test_lifeline_supervisor_killed_while_idle() -> None:
    """SIGKILL of the supervisor ends an idle worker within a second."""
    with family("held") as living:
        living.supervisor.register()
        living.parent.kill()
        wait_until(lambda: is_gone(living.worker_pid), GONE_S, "the worker is gone")


def test_lifeline_stdin_ends() -> None:
    """The end of stdin alone is enough."""
    with ScriptedSupervisor() as supervisor:
        worker = supervisor.start()
        supervisor.register()
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(GONE_S) == 1
        assert "supervisor_gone" in supervisor.log


def test_lifeline_not_our_supervisor() -> None:
    """A worker whose parent is not the supervisor it was told of does not stay."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start(DFLASHD_SUPERVISOR_PID=str(os.getppid()))
        assert supervisor.exit_status() == 1
        assert "supervisor_gone" in supervisor.log


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_watchdog_ends_a_hang_with_the_gil_held() -> None:
    """A hang in C code that holds the GIL ends the process, and the log shows where it was."""
    hung = run_python("""
        import ctypes
        from dflashd.worker.loop.watchdog import Watchdog

        def stuck_here():
            ctypes.PyDLL(None).sleep(600)

        Watchdog(0.2).beat(0.0)
        stuck_here()
    """)
    assert hung.returncode == 1
    assert "stuck_here" in hung.stderr


def test_watchdog_rests() -> None:
    """A watchdog at rest ends nothing; one that is beaten in time does not either."""
    lively = run_python("""
        import time
        from dflashd.worker.loop.watchdog import Watchdog

        watchdog = Watchdog(0.5)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            watchdog.beat(time.monotonic())
            time.sleep(0.01)
        watchdog.rest()
        time.sleep(0.8)
    """)
    assert (lively.returncode, lively.stderr) == (0, "")


def test_open_file_limit_survives_the_imports() -> None:
    """Importing the engine leaves the open-file limit at least as high as it was."""
    limits = run_python("""
        import resource
        from dflashd.worker.engine.imports import make_engine

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        make_engine()
        now_soft, now_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert now_hard == hard, (now_hard, hard)
        assert now_soft >= min(hard, 10_240), now_soft
    """)
    assert limits.returncode == 0, limits.stderr
