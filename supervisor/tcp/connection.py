"""One connection of a client, as far as its descriptor tells."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Whose it is (a public key), and where it comes from.

    libzmq owns the descriptor, and may close it at any time and give its number to another one:
    before it is used, both ends' addresses are compared.
    """

    public: str
    fd: int
    ends: tuple[object, object] | None

    @property
    def is_there(self) -> bool:
        """Whether it is still the same, and open."""
        return self.ends is not None and ends_of(self.fd) == self.ends

    def cut(self) -> None:
        """End it, as a broken cable would."""
        if self.is_there:
            shut(self.fd)


def ends_of(fd: int) -> tuple[object, object] | None:
    """Both addresses of a connected socket; None if it is none."""
    try:
        with socket.socket(fileno=os.dup(fd)) as own:
            return own.getsockname(), own.getpeername()
    except OSError:
        return None


def shut(fd: int) -> None:
    """End the connection behind a descriptor; its owner notices and closes it.

    Its number may be another's by now: a worker's or a local client's connection is left alone.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as own:
        if own.family in (socket.AF_INET, socket.AF_INET6):
            own.shutdown(socket.SHUT_RDWR)
