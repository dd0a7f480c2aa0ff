"""Tables in terminals that are too narrow for them."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from dflashd.supervisor.cli.rich_tables import Fitting
from dflashd.supervisor.cli.table import Table

HEADS = ("MODEL", "STATE", "WORKER", "MEMORY", "QUEUED", "REASON")
ROW = ("small", "registering", "family", "815 MB", "0", "waits for the memory of another")


def drawn(width: int) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(Fitting(Table(HEADS, [ROW])))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_no_word_is_broken(width: int) -> None:
    """Whatever the width, a state or a number is read at a glance."""
    words = {word.strip() for word in drawn(width).split()}
    assert {word for cell in ROW for word in cell.split()} <= words


def test_narrow_row_is_a_paragraph_that_names_its_cells() -> None:
    """Where columns have no room, each value stands behind its name."""
    assert drawn(40).splitlines()[0].strip() == "small"
    assert "state registering" in drawn(40)
    assert "MODEL" not in drawn(40)
    assert "MODEL" in drawn(80)
