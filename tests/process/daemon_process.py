"""A real daemon process with fake workers, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from dflashd.protocol import Client, SnapshotBody

FAKE_DAEMON = Path(__file__).with_name("fake_daemon.py")
T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T], limit_s: float = 30.0) -> T:
    """Poll until ``probe`` gives something true; fail with ``what`` after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not (value := probe()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.01)
    return value


class DaemonProcess:
    """Starts ``dflashd`` in a directory of its own, and leaves nothing behind."""

    def __init__(
        self,
        models: dict[str, dict[str, Any]],
        sections: dict[str, str] | None = None,
        **limits: float,
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="dfd", dir="/tmp"))
        self.runtime_dir = self.home / "run"
        self.state_dir = self.home / "state"
        self.config = self.home / "config.toml"
        self.limits = limits
        self.sections = sections or {}
        self.targets = {
            name: checkpoint(self.home / "models" / name, int(flags["memory_bytes"]))
            for name, flags in models.items()
            if flags.get("memory_bytes", 0) >= 2**20
        }
        self.environment = {
            **os.environ,
            "DFLASHD_FAKE": json.dumps(models),
            "DFLASHD_FAKE_DIR": str(self.home),
        }
        self.write_config(list(models))
        self.log = self.home / "daemon.log"
        self.start()

    def write_config(self, models: list[str]) -> None:
        """Write the file the daemon reads."""
        limits = "".join(f"{key} = {value}\n" for key, value in self.limits.items())
        dirs = f'runtime_dir = "{self.runtime_dir}"\nstate_dir = "{self.state_dir}"\n'
        lines = {name: self.sections.get(name, "") for name in models}
        sections = "".join(
            f'[models."{name}"]\n{line}\n'
            + ("" if "target" in line else f'target = "{self.targets.get(name, "fake")}"\n')
            for name, line in lines.items()
        )
        self.config.write_text(f"[daemon]\n{dirs}{limits}{sections}")

    def start(self, log: IO[bytes] | None = None) -> None:
        """Start the daemon, its stderr ``log`` or a file, and wait for its ready line."""
        with self.log.open("ab") as file:
            self.child = subprocess.Popen(
                [sys.executable, str(FAKE_DAEMON), str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log or file,
                env=self.environment,
            )
        assert self.child.stdout is not None
        line = self.child.stdout.readline().decode()
        assert "is ready" in line, self.log.read_text()

    def client(self, **options: Any) -> Client:
        """A client of this daemon."""
        return Client(self.runtime_dir, timeout_s=30, **options)

    def status(self) -> SnapshotBody:
        """The daemon's state."""
        with self.client() as client:
            return client.status()

    def worker_pids(self) -> list[int]:
        """The live child processes of the daemon."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.child.pid).children()]
        return []

    def signal(self, number: signal.Signals) -> None:
        """Signal the daemon."""
        self.child.send_signal(number)

    def wait(self, limit_s: float = 30.0) -> int:
        """Wait for the daemon's end; its exit status."""
        return self.child.wait(limit_s)

    def close(self) -> str:
        """End the daemon if it still runs, remove its directory, and return its log."""
        pids = self.worker_pids()
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait(5)
        assert self.child.stdout is not None
        self.child.stdout.close()
        wait_for("workers gone", lambda: not any(map(is_alive, pids)))
        log = self.log.read_text()
        shutil.rmtree(self.home, ignore_errors=True)
        return log


def checkpoint(folder: Path, size_bytes: int) -> Path:
    """A model's files as far as sizes are read from them: the header of one large tensor."""
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "num_hidden_layers": 1, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 1, "head_dim": 8, "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps(config | heads))
    # Many tensors: the largest one counts twice while it is cast.
    tensor = {"dtype": "F32", "shape": [size_bytes // 400], "data_offsets": [0, size_bytes // 100]}
    header = json.dumps({f"weight{n}": tensor for n in range(100)}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
