"""Tables that are too wide for a terminal, by rich: folded to its width, or a paragraph a row.

NO_COLOR leaves the colours out; rich looks at it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from .screen import shown
from .styles import COLOURED, is_number, style
from .table import Table

BREAKABLE_CHARACTERS = 20
"""A word that is longer may go over several lines."""


def write(parts: Iterable[str | Table]) -> None:
    """Write to standard output."""
    console = Console(highlight=False, emoji=False)
    for part in parts:
        if isinstance(part, str):
            console.print(Text(shown(part)), end="")
        else:
            console.print(Fitting(part))


@final
class Fitting:
    """A table in whatever width there is."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Columns as long as their words need not be broken; else paragraphs."""
        if least_width(self._table) <= options.max_width:
            yield folded(self._table)
            return
        for row in self._table.rows:
            title, *cells = cells_of(self._table.heads, row)
            yield title
            pairs = zip(self._table.heads[1:], cells, strict=True)
            named = (Text(f"{head.lower()} ") + cell for head, cell in pairs)
            yield Padding(Text("  ").join(named), (0, 0, 0, 2))


def least_width(table: Table) -> int:
    """Of the columns, without breaking their words; paths and the like may be broken."""
    lines = zip(table.heads, *table.rows, strict=True)
    words = [
        max(len(word) for cell in column for word in cell.split() or ("",)) for column in lines
    ]
    return sum(min(word, BREAKABLE_CHARACTERS) for word in words) + 2 * (len(words) - 1)


def folded(table: Table) -> RichTable:
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
