"""A daemon that ends with the process that started it, however that ends.

The parent holds the other end of a pipe that is our stdin: its end is the parent's. Should a child
of the parent hold that pipe open too, we still see that we have another parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from typing import final

from ..errors import DaemonError

_STDIN = 0


@final
class Lifeline:
    """Calls ``on_end`` once when the parent has gone."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._parent_pid = os.getppid()
        self._held = False

    def hold(self) -> None:
        """Watch stdin on the running loop. Raises DaemonError where stdin has no end."""
        if not _can_end():
            raise DaemonError(
                "--with-parent needs a stdin that ends with the parent: a pipe or a socket"
            )
        asyncio.get_running_loop().add_reader(_STDIN, self._read)
        self._held = True

    def look(self) -> None:
        """See whether we have another parent by now; cheap, and to be called now and then."""
        if self._held and os.getppid() != self._parent_pid:
            self._end()

    def release(self) -> None:
        """Watch no more."""
        if self._held:
            self._held = False
            asyncio.get_running_loop().remove_reader(_STDIN)

    def _read(self) -> None:
        said = b""
        with contextlib.suppress(OSError):  # a terminal that hung up is an end too
            said = os.read(_STDIN, 4096)
        if not said:
            self._end()

    def _end(self) -> None:
        self.release()
        self._on_end()


def _can_end() -> bool:
    """Whether stdin ends with whoever holds its other end: of a file, only its content ends."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:  # it is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(_STDIN)
