"""Log lines: an event's name and key=value pairs, on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from ...protocol.messages import EventBody
from .pump import LogPump

log = logging.getLogger("dflashd")


def line(name: str, **fields: object) -> str:
    """One log line."""
    return line_of(name, fields)


def line_of(name: str, fields: Mapping[str, object]) -> str:
    """One log line; values with spaces are quoted, line breaks are escaped."""
    return " ".join([name, *(f"{key}={_shown(value)}" for key, value in fields.items())])


def line_of_event(event: EventBody) -> str:
    """An event as the daemon has logged it."""
    # Numbers travel as floats; a pid is no fraction.
    fields = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in event.fields.items()
    }
    return line_of(event.name, fields)


def configure(level: int = logging.INFO) -> None:
    """Send the daemon's log to stderr, without ever waiting for whoever reads it."""
    closed = sys.stderr is None  # pyright: ignore[reportUnnecessaryComparison] (by our parent)
    logging.basicConfig(
        level=level,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s",
        datefmt="%F %T",
        handlers=[logging.NullHandler() if closed else LogPump(sys.stderr.fileno())],
    )


def dropped_lines() -> int:
    """Lines that were not written, since nobody read those before them."""
    pumps = (h for h in logging.getLogger().handlers if isinstance(h, LogPump))
    return sum(pump.dropped for pump in pumps)


def _shown(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and not any(c in text for c in ' "=')
    return text if plain and text else ascii(text)
