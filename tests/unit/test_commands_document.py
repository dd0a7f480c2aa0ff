"""docs/commands.md tells of every command, and of every field that programs get."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dflashd.protocol.finding import Finding
from dflashd.supervisor.cli.bench_figures import Figures, Verdict
from dflashd.supervisor.cli.parser import HOMES
from dflashd.supervisor.cli.top_frame import Frame, ModelFrame

TEXT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", HOMES)
def test_every_command_is_described(command: str) -> None:
    """A command that is there is in the table."""
    assert f"| `{command}" in TEXT or f"`, `{command}" in TEXT


@pytest.mark.parametrize("struct", [Finding, Figures, Verdict, Frame, ModelFrame])
def test_every_field_is_described(struct: type[msgspec.Struct]) -> None:
    """A field that programs may read is named."""
    assert [name for name in struct.__struct_fields__ if f"`{name}`" not in TEXT] == []
