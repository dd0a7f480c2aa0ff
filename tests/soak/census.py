"""What a daemon holds: counted when it is idle before a soak, and again after it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from dflashd.supervisor.processes.registry import MARKER

from ..process.daemon_process import DaemonProcess

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Everything that could be left behind."""

    daemon_files: int
    daemon_threads: int
    workers: int
    strays: tuple[int, ...]
    runtime_dir: tuple[str, ...]
    shared_memory: tuple[str, ...]
    own_files: int
    own_threads: int

    def growth(self, before: Census) -> dict[str, str]:
        """What is more than it was, or something else."""
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in self.__slots__}
        return {
            name: f"{was} before, {now} now"
            for name, (was, now) in pairs.items()
            if (now > was if isinstance(now, int) else set(now) - set(was))
        }


def taken(daemon: DaemonProcess, instance: str) -> Census:
    """Count now."""
    process, own = psutil.Process(daemon.child.pid), psutil.Process()
    shared = SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ()
    return Census(
        daemon_files=process.num_fds(),
        daemon_threads=process.num_threads(),
        workers=len(daemon.worker_pids()),
        strays=tuple(of_instance(instance)),
        runtime_dir=tuple(sorted(os.listdir(daemon.runtime_dir))),
        shared_memory=tuple(sorted(path.name for path in shared)),
        own_files=own.num_fds(),
        own_threads=own.num_threads(),
    )


def of_instance(instance: str) -> list[int]:
    """Every process that a daemon, or what it started, has started."""
    found: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == instance:
                found.append(process.pid)
    return found


def resident_bytes(daemon: DaemonProcess) -> int:
    """The daemon's resident memory."""
    return psutil.Process(daemon.child.pid).memory_info().rss
