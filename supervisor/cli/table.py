"""A table as a value, and as plain columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Heads in capitals, and rows of as many cells."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def columns(table: Table) -> str:
    """Columns wide enough for their content, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(table.heads, *table.rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (table.heads, *table.rows)
    ]
    return "\n".join(lines) + "\n"
