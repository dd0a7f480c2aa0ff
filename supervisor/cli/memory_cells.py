"""The memory column: a process's memory is shown once, however many models are in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .screen import amount


class Held(NamedTuple):
    """A model, its worker, and what that holds; 0 bytes where the model is in no process."""

    model: str
    worker: str
    memory_bytes: int


def memory_cells(held: Iterable[Held]) -> dict[str, str]:
    """Each model's cell: its worker's memory, or ``=`` and the model that shows it already."""
    first: dict[str, str] = {}
    cells: dict[str, str] = {}
    for model, worker, memory_bytes in held:
        if not memory_bytes:
            cells[model] = "-"
            continue
        holder = first.setdefault(worker, model)
        cells[model] = amount(memory_bytes, "bytes") if holder == model else f"={holder}"
    return cells
