"""Tables and sentences on standard output: plain columns for a pipe, colours for a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

from .screen import shown
from .styles import COLOURED, SGR, style
from .table import Table, columns, padded


def is_terminal() -> bool:
    """Whether a person looks at standard output, through something that can colour it."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def show(*parts: str | Table) -> None:
    """Write tables, and texts that end with a line break.

    rich is imported for what a terminal cannot hold as it is: it takes longer than the daemon
    does to answer.
    """
    screen = is_terminal()
    if screen and not fits(parts, shutil.get_terminal_size().columns):
        from .rich_tables import write

        write(parts)
        return
    drawn = coloured if screen else columns
    sys.stdout.write("".join(p if isinstance(p, str) else drawn(p) for p in map(safe, parts)))


def fits(parts: Iterable[str | Table], width: int) -> bool:
    """Whether all tables can be drawn cell by cell: narrow enough, a character a column."""
    tables = [part for part in parts if isinstance(part, Table)]
    lines = [line for table in tables for line in columns(table).splitlines()]
    return all(len(line) <= width and line.isascii() and line.isprintable() for line in lines)


def safe(part: str | Table) -> str | Table:
    """Without what would move a terminal's cursor: a worker's last words may hold anything."""
    return shown(part) if isinstance(part, str) else part


def coloured(table: Table) -> str:
    """Columns for a terminal: heads bold, numbers to the right, states in their colours."""
    heads, *rows = padded(table, right=True)
    lines = ["  ".join(painted("bold", head) for head in heads)]
    lines += [
        "  ".join(
            painted(style(cell.strip()), cell) if head in COLOURED else cell
            for head, cell in zip(table.heads, row, strict=True)
        )
        for row in rows
    ]
    return "".join(line.rstrip() + "\n" for line in lines)


def painted(look: str, text: str) -> str:
    """A text in a style of :data:`.styles.STYLES`, where colours are seen and wanted."""
    codes = ";".join(SGR[word] for word in look.split())
    seen = codes and is_terminal() and not os.environ.get("NO_COLOR")
    return f"\x1b[{codes}m{text}\x1b[0m" if seen else text
