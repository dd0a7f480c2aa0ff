"""Which processes are ours, on disk, so that a next daemon can end what a killed one left."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import final

import msgspec
import psutil

from ..logs.log import line, log

REGISTRY_NAME = "workers.json"
MARKER = "DFLASHD_INSTANCE"
"""Environment variable by which a worker and its children are known to be of one daemon."""

_SAME_START_S = 2.0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process: its pid, when it started (see :func:`started_s`), and whose it is."""

    pid: int
    started_s: float
    instance: str
    worker: str


@final
class ProcessRegistry:
    """The file of live workers. Written under the runtime directory's lock only."""

    def __init__(self, runtime_dir: Path, instance: str) -> None:
        self.path = runtime_dir / REGISTRY_NAME
        self._instance = instance
        self._entries: dict[int, Entry] = {}
        self.problem = ""
        """Why it does not hold what it should; empty if it does."""

    def add(self, pid: int, worker: str) -> None:
        """Remember a process that was just started."""
        with contextlib.suppress(psutil.Error):
            start_s = started_s(psutil.Process(pid))
            self._entries[pid] = Entry(
                pid=pid, started_s=start_s, instance=self._instance, worker=worker
            )
            self._write()

    def look(self) -> None:
        """Try again to write what could not be written."""
        if self.problem:
            self._write()

    def remove(self, pid: int) -> None:
        """Forget a process that is reaped."""
        if self._entries.pop(pid, None) is not None:
            self._write()

    def close(self) -> None:
        """Remove the file, unless something of ours is left for the next daemon to sweep."""
        if not self._entries:
            self.path.unlink(missing_ok=True)

    def sweep(self) -> list[Entry]:
        """Kill what a dead daemon left behind, never a stranger. Returns what was killed."""
        killed = [entry for entry in self._read() if _kill_if_ours(entry)]
        self.path.unlink(missing_ok=True)
        return killed

    def _read(self) -> list[Entry]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[Entry])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            log.warning(line("registry_unreadable", path=self.path, reason=error))
            return []

    def _write(self) -> None:
        temporary = self.path.with_suffix(".new")
        try:
            temporary.touch(mode=0o600)
            temporary.write_bytes(msgspec.json.encode(list(self._entries.values())))
            temporary.replace(self.path)
            self.problem = ""
        except OSError as error:
            # The registry is a second net: workers end with us by other means too.
            if not self.problem:
                log.warning(line("registry_unwritable", path=self.path, reason=error))
            self.problem = (
                f"{self.path} cannot be written ({error.strerror or error}): should the daemon be "
                "killed now, workers that outlive it would not be found"
            )
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def started_s(process: psutil.Process) -> float:
    """When a process started, on a clock that nobody sets. Raises psutil.Error.

    Linux counts from the boot, so that is what we keep: its wall-clock time of a start moves
    whenever the clock is set. macOS keeps the wall-clock time that it was.
    """
    boot_s = psutil.boot_time() if sys.platform == "linux" else 0.0
    return process.create_time() - boot_s


def _kill_if_ours(entry: Entry) -> bool:
    """Kill what is left of a worker's process group, if start time and marker say it is ours.

    A worker leads a group of its own and may have died before its children did: they carry the
    marker too, and no stranger can be in a group whose leader was ours.
    """
    group = [process for process in _members(entry.pid) if _is_ours(process, entry)]
    for process in group:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(group)


def _members(group: int) -> list[psutil.Process]:
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def _is_ours(process: psutil.Process, entry: Entry) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        began_after = started_s(process) - entry.started_s
        same_leader = process.pid != entry.pid or began_after <= _SAME_START_S
        return (
            began_after >= -_SAME_START_S
            and same_leader
            and process.environ().get(MARKER) == entry.instance
        )
    return False
