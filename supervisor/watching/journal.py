"""The daemon's last events: a bounded ring, each with its serial number and the time of day."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import final

from ...protocol.messages import EventBody

NAME_CHARACTERS = 64
TEXT_CHARACTERS = 4000
"""Longest text of a field; what tells more is cut, so that the ring is bounded in bytes too."""


@final
class Journal:
    """What happened, oldest first; ``clock`` gives seconds since 1970."""

    def __init__(self, keep: int, clock: Callable[[], float] = time.time) -> None:
        self._keep = keep
        self._clock = clock
        self._ring: list[EventBody] = []
        self.last_serial = 0

    @property
    def first_serial(self) -> int:
        """The oldest event that is kept; one past the last if there is none."""
        return self.last_serial - len(self._ring) + 1

    def add(self, name: str, fields: Mapping[str, str | float]) -> EventBody:
        """Keep one more event, in place of the oldest if there are enough."""
        event = EventBody(
            serial=self.last_serial + 1,
            at_unix_s=self._clock(),
            name=name[:NAME_CHARACTERS],
            fields={key: bounded(value) for key, value in fields.items()},
        )
        if len(self._ring) < self._keep:
            self._ring.append(event)
        else:
            self._ring[self.last_serial % self._keep] = event
        self.last_serial += 1
        return event

    def at(self, serial: int) -> EventBody:
        """The event of that number, which must be kept."""
        return self._ring[(serial - 1) % self._keep]

    def last(self, count: int | None) -> list[EventBody]:
        """The last ``count`` events that are kept, or all of them."""
        wanted = len(self._ring) if count is None else min(count, len(self._ring))
        begin = self.last_serial - wanted + 1
        return [self.at(serial) for serial in range(begin, self.last_serial + 1)]


def bounded(value: str | float) -> str | float:
    """A field's value as it is kept: plain text or a number."""
    return str(value)[:TEXT_CHARACTERS] if isinstance(value, str) else value
