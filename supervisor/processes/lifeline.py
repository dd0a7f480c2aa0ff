"""A daemon that ends with the process that started it, however that ends.

The parent holds the other end of a pipe that is our stdin: its end is the parent's. Should a child
of the parent hold that pipe open too, we still see that we have another parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
        try:
            asyncio.get_running_loop().add_reader(_STDIN, self._read)
        except OSError as error:  # epoll refuses files and /dev/null, which are always readable
            raise DaemonError(
                "--with-parent needs a stdin that ends with the parent: a pipe or a socket"
            ) from error
        self._held = True

    def check(self) -> None:
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
