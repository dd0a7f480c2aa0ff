"""Worker processes: started in groups of their own, watched, signalled, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from ..logs.worker_logs import WorkerLogs
from .exit_watch import ExitWatch
from .registry import MARKER, ProcessRegistry

SIGNALS = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


NAMES_LIMIT_BYTES = 100_000
"""One variable of an environment may have 128 KiB on Linux."""


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """One live worker process, and what only it and we know."""

    worker: str
    epoch: int
    child: subprocess.Popen[bytes]
    secret: bytes
    watch: ExitWatch


@final
class Processes:
    """All worker processes of this daemon.

    ``on_exit(worker, epoch, status, log_tail)`` is called once for each, after it is reaped;
    whoever decides sets it before the first start.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        workers_url: str,
        logs: WorkerLogs,
        instance: str,
        registry: ProcessRegistry,
        hang_s: float,
        models: Iterable[str] = (),
    ) -> None:
        self._command = list(command)
        self._workers_url = workers_url
        self._logs = logs
        self._instance = instance
        self._registry = registry
        self._hang_s = hang_s
        self.serve_models(models)
        self.on_exit: Callable[[str, int, int, str], None] = _unheard
        self._live: dict[tuple[str, int], Process] = {}

    def serve_models(self, models: Iterable[str]) -> None:
        """Say which models are configured now, to the processes started from now on."""
        self._models = tuple(models)

    def start(self, worker: str, epoch: int, *, cpu_share: int) -> int:
        """Start a process and return its pid. Raises OSError.

        ``cpu_share``: among how many workers the CPUs are divided, should all compute at once.

        Must run in the main thread: on Linux a worker is tied to the thread that started it.
        """
        secret = secrets.token_bytes(32)
        log_fd = self._logs.open(worker)
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # its end tells the worker that we are gone
                stdout=log_fd,
                stderr=log_fd,
                env=self._environment(worker, epoch, secret, cpu_share),
                start_new_session=True,
            )
        except OSError:
            self._logs.ended(worker)
            raise
        finally:
            os.close(log_fd)
        loop = asyncio.get_running_loop()
        key = (worker, epoch)
        try:
            watch = ExitWatch(loop, child.pid, lambda: self._ended(key))
        except OSError:
            child.kill()
            child.wait()
            self._logs.ended(worker)
            raise
        self._live[key] = Process(
            worker=worker,
            epoch=epoch,
            child=child,
            secret=secret,
            watch=watch,
        )
        self._registry.add(child.pid, worker)
        return child.pid

    def signal(self, worker: str, epoch: int, how: Literal["terminate", "kill"]) -> bool:
        """Signal a process's whole group; False when there is no such process."""
        process = self._live.get((worker, epoch))
        if process is None:
            return False
        # The leader is not reaped before its watch fires, so the group's id is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.child.pid, SIGNALS[how])
        return True

    def is_known(self, worker: str, epoch: int, pid: int, secret: bytes) -> bool:
        """Whether this is the process we started for that incarnation."""
        process = self._live.get((worker, epoch))
        return (
            process is not None
            and process.child.pid == pid
            and secrets.compare_digest(process.secret, secret)
        )

    def kill_all(self) -> None:
        """Kill and reap every process, at the daemon's own unexpected end."""
        for process in list(self._live.values()):
            self.signal(process.worker, process.epoch, "kill")
            process.watch.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.child.wait(timeout=5)
                self._registry.remove(process.child.pid)
        self._live.clear()

    def _ended(self, key: tuple[str, int]) -> None:
        process = self._live.pop(key)
        # Grandchildren first, while the unreaped leader keeps the group's id from being reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.child.pid, signal.SIGKILL)
        status = process.child.wait()
        if process.child.stdin is not None:
            process.child.stdin.close()
        self._registry.remove(process.child.pid)
        log_tail = self._logs.of(process.worker).tail()
        self._logs.ended(process.worker)
        self.on_exit(process.worker, process.epoch, status, log_tail)

    def _environment(
        self, worker: str, epoch: int, secret: bytes, cpu_share: int
    ) -> Mapping[str, str]:
        names = "\n".join(self._models)
        # Whose cached prefixes are still wanted, when the disk runs short. Left out, all are.
        known = {"DFLASHD_MODELS": names} if len(names) < NAMES_LIMIT_BYTES else {}
        return {
            **os.environ,
            **known,
            MARKER: self._instance,
            "DFLASHD_WORKERS": self._workers_url,
            "DFLASHD_WORKER": worker,
            "DFLASHD_EPOCH": str(epoch),
            "DFLASHD_SECRET": secret.hex(),
            "DFLASHD_SUPERVISOR_PID": str(os.getpid()),
            "DFLASHD_CPU_SHARE": str(cpu_share),
            "DFLASHD_HANG_S": str(self._hang_s),
        }


def _unheard(worker: str, epoch: int, status: int, log_tail: str) -> None:
    raise RuntimeError(f"nobody hears of the end of {worker}-{epoch}: {status}, {log_tail}")
