"""A table as a value, and as plain columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .styles import is_number


@dataclass(frozen=True, slots=True)
class Table:
    """Heads in capitals, and rows of as many cells."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def columns(table: Table) -> str:
    """Columns wide enough for their content, two spaces apart."""
    return "".join("  ".join(line).rstrip() + "\n" for line in padded(table, right=False))


def padded(table: Table, *, right: bool) -> list[list[str]]:
    """The lines' cells, each as wide as its column; with ``right``, numbers are to the right."""
    lines = [table.heads, *table.rows]
    filled: list[list[str]] = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        justify = str.rjust if right and is_number(list(column[1:])) else str.ljust
        filled.append([justify(cell, width) for cell in column])
    return [list(line) for line in zip(*filled, strict=True)]
