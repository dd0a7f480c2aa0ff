"""The embedding example, as a reader of the README runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("smollm2_folder")
def test_the_example_does_what_it_shows() -> None:
    """Two models on one target, asked from two threads, one changed and one unloaded."""
    done = subprocess.run(
        [sys.executable, "examples/embed.py", "8"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shared, first, second, third, left = (
        line for line in done.stdout.splitlines() if not line.startswith("  ")
    )
    megabytes = float(shared.split()[3])
    assert megabytes > 300, "the target is 135 million parameters, held once"
    assert first.startswith("small, ")
    assert second.startswith("other, ")
    assert third.startswith("other, ")
    assert left == "left: other"


def test_the_example_is_short() -> None:
    """It fits on a screen."""
    assert len((ROOT / "examples" / "embed.py").read_text().splitlines()) < 40
