"""Tables and sentences on standard output: plain columns for a pipe, rich ones for a terminal."""

from __future__ import annotations

import os
import sys

from .screen import shown
from .table import Table, columns


def is_terminal() -> bool:
    """Whether a person looks at standard output, through something that can colour it."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def show(*parts: str | Table) -> None:
    """Write tables, and texts that end with a line break.

    rich is imported for a terminal only: it takes longer than the daemon does to answer.
    """
    if is_terminal() and any(isinstance(part, Table) for part in parts):
        from .rich_tables import write

        write(parts)
    else:
        sys.stdout.write("".join(p if isinstance(p, str) else columns(p) for p in map(safe, parts)))


def safe(part: str | Table) -> str | Table:
    """Without what would move a terminal's cursor: a worker's last words may hold anything."""
    return shown(part) if isinstance(part, str) else part
