"""What commands say of states and of progress."""

from __future__ import annotations

import pytest

from dflashd.supervisor.cli.screen import progress


@pytest.mark.parametrize(
    ("done", "total", "unit", "said"),
    [
        (0, 36, "layers", "0 of 36 layers"),
        (24e6, 93e6, "bytes", "24 MB of 93 MB"),
        (7, 0, "files", "7 files"),
        (0, 0, "layers", ""),
    ],
)
def test_progress_names_its_unit_once(done: int, total: int, unit: str, said: str) -> None:
    """How far a load is reads like a sentence."""
    assert progress(done, total, unit) == said
