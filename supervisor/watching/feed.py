"""Where a watcher's messages come from: the journal, or a worker's log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import final

from ...protocol.messages import Body, EventBody, Happened, Header, LogBody, LogPart
from ..logs.worker_log import WorkerLog
from .journal import Journal

PART_BYTES = 16 * 1024
"""Read from a log at once: small enough that a read is not noticed by anyone else."""


class Feed(ABC):
    """Messages for one watcher, made one by one as it can take them."""

    @property
    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether there is nothing (more) at the moment."""

    @abstractmethod
    def next(self, id: bytes) -> tuple[Header, Body] | None:
        """One step on: the next message, or None if the step made none. Raises OSError."""


@final
class EventFeed(Feed):
    """The last ``last`` events (None: all that are kept), and with ``follow`` all later ones."""

    def __init__(self, journal: Journal, last: int | None, *, follow: bool) -> None:
        self._journal = journal
        self._follow = follow
        # Held here, so that what was there at the beginning cannot be lost to slowness.
        self._past: deque[EventBody] = deque(journal.last(last))
        self._next_serial = journal.last_serial + 1

    @property
    def is_at_end(self) -> bool:
        return not self._past and not (
            self._follow and self._next_serial <= self._journal.last_serial
        )

    def next(self, id: bytes) -> tuple[Header, Body] | None:
        if self._past:
            return Happened(id=id), self._past.popleft()
        missed = max(0, self._journal.first_serial - self._next_serial)
        event = self._journal.at(self._next_serial + missed)
        self._next_serial = event.serial + 1
        return Happened(id=id, missed=missed), event


@final
class LogFeed(Feed):
    """The last ``lines`` lines of a log, and with ``follow`` what is appended to it."""

    def __init__(self, log: WorkerLog, lines: int, *, follow: bool) -> None:
        self._log = log
        self._follow = follow
        self._end = log.end
        self._position = self._end
        # A line's own break does not count, nor does the last line need one.
        self._breaks_left = lines + 1
        self._looking_back = lines > 0

    @property
    def is_at_end(self) -> bool:
        end = self._log.end if self._follow else self._end
        return not self._looking_back and self._position >= end

    def next(self, id: bytes) -> tuple[Header, Body] | None:
        if self._looking_back:
            self._look_back()
            return None
        limit = PART_BYTES if self._follow else min(PART_BYTES, self._end - self._position)
        begin, data = self._log.read(self._position, limit)
        missed = begin - self._position
        self._position = begin + len(data)
        if not data and not missed:
            # Cut off or removed under us, and not written to since.
            self._position = self._log.end if self._follow else self._end
            return None
        return LogPart(id=id, missed=missed), LogBody(data=data)

    def _look_back(self) -> None:
        """Go one part further back in search of the line to begin with."""
        begin = max(self._log.begin, self._position - PART_BYTES)
        begin, data = self._log.read(begin, max(0, self._position - begin))
        if begin >= self._position:  # the log's beginning, or what lay before was cut off
            self._looking_back = False
            return
        data = data[: self._position - begin]
        if self._position == self._end and not data.endswith(b"\n"):
            self._breaks_left -= 1
        at = len(data)
        while self._breaks_left and (at := data.rfind(b"\n", 0, at)) >= 0:
            self._breaks_left -= 1
        if self._breaks_left == 0:
            self._position = begin + at + 1
            self._looking_back = False
        else:
            self._position = begin
            self._looking_back = begin > self._log.begin and bool(data)
