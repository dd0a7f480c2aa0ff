"""Exit statuses are stated in one place, and the document for operators says the same."""

from __future__ import annotations

import re
from pathlib import Path

from dflashd.supervisor import exit_statuses

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def test_document_lists_every_status() -> None:
    """Whoever writes a unit or a script finds each status, and none that does not exist."""
    section = DOCUMENT.read_text().split("## Exit statuses", 1)[1]
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    exits = {value for name, value in vars(exit_statuses).items() if name.startswith("EXIT_")}
    assert listed == exits
