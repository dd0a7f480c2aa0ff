"""How near the process is to running out of descriptors, which would abort it."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import final

WANTED = 65_536
MAC_MOST = 10_240
"""OPEN_MAX there: what a process may have whatever its administrator set."""

CROWD_PER_S = 10_000
"""Connections that may arrive in a second; libzmq accepts each in a tenth of a millisecond."""


def raise_limit() -> None:
    """Raise the soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (WANTED, MAC_MOST):
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        # A kernel's own bound may lie below the hard limit, and be told by nothing else.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


@final
class OpenFiles:
    """Decides whether new clients may come.

    libzmq accepts by itself, and aborts the process when there is no descriptor left (on a local
    socket). So the doors are shut at half of the limit: what can still arrive between two looks,
    and what starting workers takes, is far less than the other half.
    """

    def __init__(self) -> None:
        self.are_short = False
        """Whether nobody new may come; changed by :meth:`look`."""
        self.look_s = 0.0
        """How soon to look again: before a crowd could have taken what is left."""

    def look(self) -> bool:
        """Count; True when ``are_short`` has changed."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = WANTED if soft == resource.RLIM_INFINITY else soft
        share = in_use() / limit
        was_short = self.are_short
        self.are_short = share > (0.4 if was_short else 0.5)
        self.look_s = limit * max(0.0, 0.5 - share) / CROWD_PER_S
        return self.are_short is not was_short


def in_use() -> int:
    """About how many descriptors are open: the lowest free one has that many below it."""
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.close(lowest_free)
    return lowest_free
