"""The sd_notify protocol: telling a service manager how we are (man 3 sd_notify).

A datagram to the socket that the environment names. The packages that speak it bind libsystemd or
are no longer kept, and it is a dozen lines.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final, final

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

_SAYS: Final = {
    "reload_asked": "RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reading the configuration",
    "config_reloaded": "READY=1\nSTATUS=serving with the new configuration",
    "config_refused": "READY=1\nSTATUS=serving; the new configuration was refused, see the log",
    "shutdown_asked": "STOPPING=1\nSTATUS=stopping",
}
"""What is said when something of that name has happened to the daemon."""


@final
class ServiceNotifier:
    """Speaks to the service manager that started us; without one every method does nothing.

    Sending never waits: a manager that does not read must not stop the daemon.
    """

    def __init__(self, socket_path: str, watchdog_s: float | None) -> None:
        self._address = f"\0{socket_path[1:]}" if socket_path.startswith("@") else socket_path
        self._beat_s = None if watchdog_s is None else watchdog_s / 2
        self._beat_at_s = float("-inf")
        self._socket: socket.socket | None = None
        if socket_path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(0)

    @classmethod
    def take(cls, environ: MutableMapping[str, str], pid: int) -> ServiceNotifier:
        """What the environment says, taken out of it: it is not meant for our workers."""
        path, usec, watched = (environ.pop(name, "") for name in _VARIABLES)
        ours = watched in ("", str(pid))
        watchdog_s = int(usec) / 1e6 if usec.isdecimal() and int(usec) and ours else None
        return cls(path if path[:1] in ("/", "@") else "", watchdog_s)

    def ready(self, sentence: str) -> None:
        """Clients may come."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={sentence}")

    def happened(self, name: str) -> None:
        """Something happened to the daemon that the manager may want to know."""
        said = _SAYS.get(name)
        if said is not None:
            self._send(said.format(usec=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000))

    def look(self) -> None:
        """The loop works. Said at most twice in the time after which we would be killed."""
        now_s = time.monotonic()
        if self._beat_s is not None and now_s - self._beat_at_s >= self._beat_s:
            self._beat_at_s = now_s
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode(), self._address)
