"""What a command costs before the daemon is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"asyncio", "logging", "psutil", "ssl", "rich", "argcomplete", "importlib.metadata"}
"""Each takes about as long to import as the daemon takes to answer."""
SMALL = {
    "status": "3",
    "models": "3",
    "spawn m": "3",
    "retire m": "3",
    "reload": "3",
    "shutdown": "3",
    "pin m": "3",
    "unpin m": "3",
    "cache": "3",
    "cache clear m": "3",
    "metrics": "3",
    "events -f": "3",
    "logs m": "3",
    "config check {file}": "0",
    "config check --diff {file}": "3",
    "config schema": "0",
    "keys list --config {file}": "0",
}
"""Commands that ask or look and leave, with their exit status where no daemon is."""


@pytest.mark.parametrize("command", SMALL)
def test_a_small_command_starts_without_an_event_loop(command: str, tmp_path: Path) -> None:
    """A command that asks and leaves imports nothing that only a conversation needs."""
    (file := tmp_path / "d.toml").write_text(f'[daemon]\nstate_dir = "{tmp_path}/state"\n')
    words = ["--runtime-dir", str(tmp_path), *command.format(file=file).split()]
    code = (
        f"import sys; from dflashd.supervisor.cli import main; status = main({words!r});"
        "print(status, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    status, *modules = done.stdout.splitlines()[-1].split()
    assert status == SMALL[command], done.stderr
    assert ("no daemon listens" in done.stderr) is (status == "3")
    assert not HEAVY & set(modules)


@pytest.mark.parametrize(("columns", "needed"), [(80, False), (12, True)])
def test_a_terminal_needs_rich_for_what_it_cannot_hold(columns: int, needed: bool) -> None:
    """A table that fits is drawn in colours by ourselves; one that must be folded, by rich."""
    code = (
        "import os, sys; from dflashd.supervisor.cli.tables import Table, show;"
        "sys.stdout.isatty = lambda: True;"
        "show('some models\\n', Table(('MODEL', 'STATE', 'N'), [('a-name', 'ready', '1')]));"
        "print('rich' in sys.modules)"
    )
    environment = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert "\x1b[" in done.stdout or needed  # rich takes a pipe for what it is
    assert done.stdout.splitlines()[-1] == str(needed)


def test_findings_of_the_doctor_fit_the_terminal() -> None:
    """A narrow terminal does not fold lines that are folded already; a pipe has one width."""
    code = (
        "import sys; from dflashd.supervisor.cli.doctor import write;"
        "from dflashd.protocol.finding import Finding;"
        "sys.stdout.isatty = lambda: {terminal};"
        "write(Finding(name='blas', says='some words ' * 20, level='note', advice='do it ' * 20))"
    )
    longest = {}
    for terminal, columns in ((True, "50"), (True, "200"), (False, "50")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(terminal=terminal)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={"TERM": "xterm", "COLUMNS": columns, "LINES": "40", "NO_COLOR": "1"},
        )
        longest[terminal, columns] = max(map(len, done.stdout.splitlines()))
    assert longest[True, "50"] <= 50
    assert 80 < longest[True, "200"] == longest[False, "50"] <= 104


def test_the_short_parser_takes_what_the_whole_one_takes() -> None:
    """Only the chosen command's arguments are made, and only where it is sure which that is."""
    from dflashd.supervisor.cli.parser import chosen_in, parser

    for line, chosen in (
        ("status --json", "status"),
        ("--runtime-dir pin --key k models", "models"),
        ("--runtime-dir=x models", None),
        ("--run x models", None),
        ("--help status", None),
        ("nonsense", None),
        ("--key", None),
        ("", None),
    ):
        assert chosen_in(line.split()) == chosen
        if chosen:
            words = line.split()
            assert parser(chosen).parse_args(words) == parser().parse_args(words)
