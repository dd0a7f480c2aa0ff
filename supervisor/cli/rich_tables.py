"""Tables for a terminal, by rich: fitted to its width, states and levels in colour.

NO_COLOR leaves the colours out; rich looks at it itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from .screen import shown
from .table import Table

COLOURED = frozenset({"STATE", "CHANGE", "LEVEL"})
"""Columns whose first word tells how well something is."""

STYLES = {
    **dict.fromkeys(("ready", "kept", "ok", "open", "serving"), "green"),
    **dict.fromkeys(("busy", "added", "adjusted"), "bold green"),
    **dict.fromkeys(("loading", "spawning", "registering", "starting", "waiting"), "yellow"),
    **dict.fromkeys(("draining", "unloading", "stopping", "replaced", "note"), "yellow"),
    **dict.fromkeys(("backoff", "lost", "fatal", "removed", "problem"), "bold red"),
    **dict.fromkeys(("stopped", "absent"), "dim"),
}
_NUMBER = re.compile(r"-|[\d.,]+(?: \S+)?")


def write(parts: Iterable[str | Table]) -> None:
    """Write to standard output."""
    console = Console(highlight=False, emoji=False)
    for part in parts:
        if isinstance(part, str):
            console.print(Text(shown(part)), end="")
        else:
            console.print(renderable(part))


def renderable(table: Table) -> RenderableType:
    """A table without lines, numbers to the right."""
    rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, head in enumerate(table.heads):
        cells = [row[place] for row in table.rows]
        is_number = bool(cells) and all(map(_NUMBER.fullmatch, cells))
        rich.add_column(head, justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        rich.add_row(*cells_of(table.heads, row))
    return rich


def cells_of(heads: Sequence[str], row: Sequence[str]) -> list[Text]:
    """A row's cells as they are, never as rich's markup."""
    return [
        Text(cell, style=style(cell) if head in COLOURED else "")
        for head, cell in zip(heads, row, strict=True)
    ]


def style(state: str) -> str:
    """How a state looks; what is not known looks plain."""
    return STYLES.get(re.split(r"\W", state, maxsplit=1)[0].lower(), "")
