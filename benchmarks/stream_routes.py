"""Between a client and a streaming worker: nothing, the proxy of libzmq, or dflashd."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

from dflashd.protocol import Client

WORKER = Path(__file__).with_name("stream_worker.py")
DAEMON = Path(__file__).with_name("stream_daemon.py")
START_S = 120.0


@contextlib.contextmanager
def direct(folder: Path) -> Generator[str]:
    """The worker itself; the URL to connect to."""
    url = f"ipc://{folder / 'direct.sock'}"
    with _process(WORKER, "direct", url):
        _await(folder / "direct.sock")
        yield url


@contextlib.contextmanager
def proxied(folder: Path) -> Generator[str]:
    """A worker behind a bare libzmq proxy in a process of its own."""
    front, back = (f"ipc://{folder / name}.sock" for name in ("front", "back"))
    with _process(WORKER, "proxy", front, back):
        _await(folder / "back.sock")
        with _process(WORKER, "proxied", back):
            yield front


@contextlib.contextmanager
def supervised(folder: Path, workers: int = 1, *, sections: str = "") -> Generator[tuple[str, int]]:
    """``workers`` streaming workers of a real daemon, all ready; its URL and pid.

    ``sections`` are added to its configuration.
    """
    run = folder / "run"
    lines = ["[daemon]", f'runtime_dir = "{run}"', f'state_dir = "{folder / "state"}"']
    lines += ["active_requests_per_worker = 512"]
    for n in range(workers):
        lines += [f"[models.m{n}]", 'target = "none"']
    config = folder / "config.toml"
    config.write_text("\n".join([*lines, sections]) + "\n")
    with _process(DAEMON, str(config)) as child:
        _await(run / "control.sock")
        with Client(run, timeout_s=START_S) as client:
            for n in range(workers):
                client.spawn(f"m{n}")
        yield f"ipc://{run / 'requests.sock'}", child.pid


@contextlib.contextmanager
def _process(*command: str | Path) -> Generator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _await(path: Path) -> None:
    end = time.monotonic() + START_S
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not appear within {START_S:.0f} s")
        time.sleep(0.01)
