"""What a look at the daemon costs before it is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"asyncio", "logging", "psutil", "ssl"}
"""Each takes about as long to import as the daemon takes to answer."""


@pytest.mark.parametrize("command", ["status", "models"])
def test_a_look_starts_without_an_event_loop(command: str, tmp_path: Path) -> None:
    """``dflashctl status`` and ``models`` import nothing that only a conversation needs."""
    code = (
        "import sys; from dflashd.supervisor.cli import main;"
        f"status = main(['--runtime-dir', {str(tmp_path)!r}, {command!r}]);"
        "print(status, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    status, *modules = done.stdout.split()
    assert status == "3"
    assert "no daemon listens" in done.stderr
    assert not HEAVY & set(modules)
