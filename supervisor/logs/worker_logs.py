"""All workers' logs: each within its bound, and all within one."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import final

from .worker_log import WorkerLog, log_path, size_of

LOOK_S = 0.25
"""Between two looks at logs that hardly grow."""

SOONEST_S = 0.005
"""Between two looks at a log that is flooded."""


@final
class WorkerLogs:
    """The logs in ``log_dir``: at most ``worker_bytes`` for each, ``all_bytes`` for all.

    The loop opens and reads them; :meth:`keep`, which bounds them, is another thread's.
    """

    def __init__(self, log_dir: Path, *, worker_bytes: int, all_bytes: int) -> None:
        self._log_dir = log_dir
        self._worker_bytes = worker_bytes
        self._all_bytes = all_bytes
        self._logs: dict[str, WorkerLog] = {}
        self._live: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._error = ""
        self._errors: deque[str] = deque()

    def of(self, worker: str) -> WorkerLog:
        """A worker's log, whether or not it has written one."""
        if worker not in self._logs:
            self._logs[worker] = WorkerLog(log_path(self._log_dir, worker))
        return self._logs[worker]

    def open(self, worker: str) -> int:
        """Open a worker's log for a new process; the descriptor. Raises OSError.

        Where nothing can be written the process runs without a log, and :meth:`new_errors` tells.
        """
        log = self.of(worker)  # before the other thread may look for it
        with self._lock:
            self._live[worker] = self._live.get(worker, 0) + 1
        try:
            return log.open()
        except OSError as error:
            self._failed(error)
        try:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # no descriptor is left: there will be no process
            self.ended(worker)
            raise

    def ended(self, worker: str) -> None:
        """A process of the worker is gone."""
        with self._lock:
            self._live[worker] -= 1
            if not self._live[worker]:
                del self._live[worker]

    @property
    def lost_bytes(self) -> int:
        """Bytes that were cut off without a copy, of all workers."""
        return sum(log.lost_bytes for log in self._logs.values())

    def new_errors(self) -> list[str]:
        """What went wrong since the last call, each trouble once until it is over."""
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def keep(self) -> float:
        """Bound all logs now; the seconds until they should be looked at again."""
        with self._lock:
            live = tuple(self._live)
        worker_bytes = min(self._worker_bytes, self._all_bytes // max(1, len(live)))
        rest_s = LOOK_S
        failed = False
        for worker in live:
            log = self.of(worker)
            size = size_of(log.path)
            failed |= not self._bound(log, size, worker_bytes // 2)
            rest_s = min(rest_s, self._rest_s(worker, size, worker_bytes // 2))
        try:
            self._remove_oldest(self._all_bytes - worker_bytes * len(live))
        except OSError as error:
            self._failed(error)
            failed = True
        if not failed and self._error and self._can_write():
            self._error = ""
        return rest_s

    def _bound(self, log: WorkerLog, size: int, half_bytes: int) -> bool:
        try:
            if size >= half_bytes:
                log.cut(half_bytes)
            elif log.older_bytes > half_bytes:
                log.shorten(half_bytes)
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _rest_s(self, worker: str, size: int, limit: int) -> float:
        """How long a log may be left alone, from how it grew since the last look."""
        grown = max(1, size - self._sizes.get(worker, size))
        self._sizes[worker] = 0 if size >= limit else size
        return max(SOONEST_S, min(LOOK_S, LOOK_S * (limit - size) / grown / 4))

    def _remove_oldest(self, limit_bytes: int) -> None:
        """Remove logs of workers that do not run, longest unwritten first, down to the limit."""
        with os.scandir(self._log_dir) as entries:
            found = {Path(e.path): e.stat() for e in entries if e.is_file(follow_symlinks=False)}
        known = {path: log for log in list(self._logs.values()) for path in (log.path, log.older)}
        with self._lock:
            kept = {path for path, log in known.items() if log in self._live_logs()}
            idle = sorted((s.st_mtime, s.st_size, p) for p, s in found.items() if p not in kept)
            total = sum(size for _, size, _ in idle)
            for _, size, path in idle:
                if total <= limit_bytes:
                    return
                if path in known:
                    known[path].remove(path)
                else:
                    path.unlink(missing_ok=True)
                total -= size

    def _live_logs(self) -> list[WorkerLog]:
        return [self._logs[worker] for worker in self._live]

    def _can_write(self) -> bool:
        probe = self._log_dir / ".probe"
        try:
            probe.write_bytes(b"can anything be written?")
            probe.unlink()
        except OSError:
            return False
        return True

    def _failed(self, error: OSError) -> None:
        if str(error) != self._error:
            self._error = str(error)
            self._errors.append(self._error)
