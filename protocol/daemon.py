"""A daemon as a child process, for host applications, examples and benchmarks."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from pathlib import Path
from typing import Self

from .errors import DflashError, ErrorCode
from .sync import Client

START_S = 30.0
STOP_S = 30.0


class Daemon:
    """Runs ``dflashd serve`` while a ``with`` block lasts, and never longer than this process.

    ``config`` is the configuration file and must name its own ``runtime_dir``, given here too.
    The daemon's log goes to ``log``. However this process ends, SIGKILL included, the daemon and
    its workers stop within seconds.

    Raises:
        DflashError: internal, with the end of the log, when the daemon does not come up.
    """

    def __init__(self, config: Path, *, runtime_dir: Path, log: Path) -> None:
        self._config = config
        self._runtime_dir = runtime_dir
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        if self._child is None:
            raise DflashError(ErrorCode.internal, "the daemon is not running")
        return self._child.pid

    def client(self) -> Client:
        """A client of this daemon; the caller closes it."""
        return Client(self._runtime_dir, timeout_s=START_S)

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # no module of ours is to be found in whatever folder the host is in
                    "-m",
                    "dflashd.supervisor.serve",
                    "serve",
                    "--config",
                    str(self._config),
                    "--with-parent",
                ],
                stdin=subprocess.PIPE,  # its end tells the daemon that we have gone
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            is_ready = self._said_ready(self._child)
        except BaseException:  # Ctrl-C: nobody else would stop it
            self.stop()
            raise
        if not is_ready:
            self.stop()
            tail = self._log.read_text(errors="replace")[-1000:].strip()
            raise DflashError(ErrorCode.internal, f"the daemon did not start: {tail}")
        return self

    @staticmethod
    def _said_ready(child: subprocess.Popen[bytes]) -> bool:
        """Wait for the line that says so; False if the daemon ended instead, or took too long."""
        stdout = child.stdout
        if stdout is None:
            return False
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        return bool(poll.poll(START_S * 1000)) and bool(stdout.readline())

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Ask the daemon to stop in an orderly way, at last make it; its exit status."""
        if self._child is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        try:
            status = self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait(STOP_S)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child = None
        return status
