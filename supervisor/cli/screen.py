"""What goes to the terminal: text without control codes, amounts, one progress line."""

from __future__ import annotations

import os
import sys
from typing import final

from ...protocol.messages import Accepted, Event


def shown(text: str) -> str:
    """Model output for a terminal: a model must not move the cursor or set the title."""
    return printable(text) if sys.stdout.isatty() else text


def printable(text: str) -> str:
    """A text without control codes."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def amount(count: float, unit: str) -> str:
    """A count in its unit, bytes in MB or GB."""
    if unit != "bytes":
        return f"{count:.0f} {unit}".rstrip()
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def progress(done: int, total: int, unit: str) -> str:
    """How far something is: the unit once."""
    if not total:
        return amount(done, unit) if done else ""
    return f"{amount(done, unit if unit == 'bytes' else '')} of {amount(total, unit)}"


def columns() -> int:
    """How wide the terminal behind stderr is."""
    return os.get_terminal_size(sys.stderr.fileno()).columns or 80


@final
class ProgressLine:
    """What a command waits for: one changing line on a terminal, a line per stage elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last = ""
        self._stage = ""
        self._place = ("", 0)

    def __call__(self, event: Accepted | Event) -> None:
        """Show one report of the daemon."""
        if isinstance(event, Accepted):
            place = (event.waits_for, event.position)
            if event.position == 0 and event.waits_for:
                self.say(f"waiting for {event.waits_for}", event.waits_for)
            elif event.position == 0:
                self.clear()
            elif place != self._place:  # a mere sign of life must not cover the progress
                self.say(f"{event.waits_for} (place {event.position})", event.waits_for)
            self._place = place
        elif event.name == "state":
            self.say(f"{event.model}: {event.stage}", event.stage)
        else:
            far = progress(event.done, event.total, event.unit)
            self.say(f"{event.model}: {event.stage} {far}".rstrip(), event.stage)

    def say(self, text: str, stage: str | None = None) -> None:
        """Show a text, perhaps as the next one of the same stage."""
        text = printable(text)
        before, self._stage = self._stage, text if stage is None else stage
        if self._tty and text != self._last:
            sys.stderr.write(f"\r\x1b[K{text[: columns() - 1]}")  # a second line would stay there
        elif self._stage != before and not self._tty:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        self._last = text

    def clear(self) -> None:
        """Take the line away."""
        if self._tty and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._last = ""
