"""A command in a terminal of its own, for tests: what it writes, and keys for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from typing import Self


class Terminal:
    """A process on a pty of 40 lines and 120 columns; ``screen`` is all it has written so far."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            os.environ.pop("NO_COLOR", None)
            os.execvpe(command[0], list(command), {**os.environ, "TERM": "xterm", **environment})
        self.screen = ""
        self.modes = termios.tcgetattr(self.fd)

    def until(self, text: str, limit_s: float = 30.0) -> str:
        """Read until the screen holds ``text``."""
        end = time.monotonic() + limit_s
        while text not in self.screen:
            assert self._read(end - time.monotonic()), f"no {text!r} in …{self.screen[-4000:]!r}"
        return self.screen

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.fd, keys.encode())

    def wait(self, limit_s: float = 30.0) -> int:
        """Read to the end; the exit status, negative for a signal."""
        end = time.monotonic() + limit_s
        while self._read(end - time.monotonic()):
            pass
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            assert time.monotonic() < end, f"does not end: {self.screen!r}"
            time.sleep(0.01)
        self.pid = 0
        return os.waitstatus_to_exitcode(found[1])

    def _read(self, left_s: float) -> bool:
        if left_s <= 0 or not select.select([self.fd], [], [], left_s)[0]:
            return False
        try:
            piece = os.read(self.fd, 65536)
        except OSError:  # Linux's way of saying that the other side is closed
            return False
        self.screen += piece.decode(errors="replace")
        return bool(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
