"""Tables that are too wide for a terminal, by rich: folded to its width.

NO_COLOR leaves the colours out; rich looks at it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from .screen import shown
from .styles import COLOURED, is_number, style
from .table import Table


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
        justify = "right" if is_number(cells) else "left"
        rich.add_column(head, justify=justify, overflow="fold")
    for row in table.rows:
        rich.add_row(*cells_of(table.heads, row))
    return rich


def cells_of(heads: Sequence[str], row: Sequence[str]) -> list[Text]:
    """A row's cells as they are, never as rich's markup."""
    return [
        Text(cell, style=style(cell) if head in COLOURED else "")
        for head, cell in zip(heads, row, strict=True)
    ]
