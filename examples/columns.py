"""Several texts that grow at the same time, on one terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Sequence
from typing import Protocol

_REDRAW_S = 0.05
_MIN_COLUMN = 34
_LINE_WIDTH = 76


class View(Protocol):
    """Shows what the models say while they say it."""

    def note(self, name: str, text: str) -> None:
        """Say how far ``name`` is, instead of what was said of it before."""
        ...

    def add(self, name: str, text: str) -> None:
        """More of the text of ``name``."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


def view(names: Sequence[str]) -> View:
    """Columns on a terminal that is wide enough, labelled lines elsewhere."""
    size = shutil.get_terminal_size()
    width = (size.columns - 3 * (len(names) - 1)) // len(names)
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and width >= _MIN_COLUMN:
        return Columns(names, width, max(4, size.lines - 6))
    return Lines(names)


class Columns:
    """Side by side, redrawn in place; of a long text the end is shown."""

    def __init__(self, names: Sequence[str], width: int, height: int) -> None:
        self._texts = dict.fromkeys(names, "")
        self._notes = dict.fromkeys(names, "")
        self._width, self._height = width, height
        self._drawn_lines = 0
        self._drawn_at_s = 0.0

    def note(self, name: str, text: str) -> None:
        self._notes[name] = text
        self._draw()

    def add(self, name: str, text: str) -> None:
        self._notes[name] = ""
        self._texts[name] += printable(text)
        self._draw()

    def close(self) -> None:
        self._draw(at_once=True)

    def _draw(self, *, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_at_s < _REDRAW_S and not at_once:
            return
        self._drawn_at_s = now_s
        columns = [self._column(name) for name in self._texts]
        height = max(self._drawn_lines, *(len(column) for column in columns))
        up = f"\x1b[{self._drawn_lines}A" if self._drawn_lines else ""
        rows = [
            "\x1b[K" + " │ ".join(_padded(column, row, self._width) for column in columns)
            for row in range(height)
        ]
        sys.stdout.write(f"{up}\r" + "\n".join(rows) + "\n")
        sys.stdout.flush()
        self._drawn_lines = height

    def _column(self, name: str) -> list[str]:
        text = self._notes[name] or self._texts[name]
        return [name, "─" * self._width, *wrapped(text, self._width)[-self._height :]]


class Lines:
    """One after the other: each line begins with the name of who says it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._pending = dict.fromkeys(names, "")
        self._stages = dict.fromkeys(names, "")
        self._label_width = max(len(name) for name in names)

    def note(self, name: str, text: str) -> None:
        stage = text.partition(":")[0]
        if stage != self._stages[name]:
            self._stages[name] = stage
            self._say(name, f"({text})")

    def add(self, name: str, text: str) -> None:
        *whole, rest = wrapped(self._pending[name] + printable(text), _LINE_WIDTH)
        for line in whole:
            self._say(name, line)
        self._pending[name] = rest

    def close(self) -> None:
        for name, rest in self._pending.items():
            if rest:
                self._say(name, rest)
                self._pending[name] = ""

    def _say(self, name: str, line: str) -> None:
        sys.stdout.write(f"{name:{self._label_width}} │ {line}\n")
        sys.stdout.flush()


def printable(text: str) -> str:
    """Model text without what could steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters, indentation kept; at least one."""
    lines: list[str] = []
    for line in text.split("\n"):
        parts = textwrap.wrap(line, width, replace_whitespace=False, drop_whitespace=False)
        lines += parts or [""]
    return lines


def _padded(column: Sequence[str], row: int, width: int) -> str:
    """A line of a column, filled up to ``width`` terminal cells."""
    line = column[row] if row < len(column) else ""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in line)
    return line + " " * max(0, width - len(line) - wide)
