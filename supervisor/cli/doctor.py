"""``dflashctl doctor``: what this machine computes with, what is wrong, and what to do."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator

import msgspec

from ...protocol.errors import DflashError
from ...protocol.finding import Finding
from ...protocol.paths import runtime_dir
from ..doctor import host, model_libraries, versions
from ..exit_statuses import EXIT_FAILED, EXIT_OK
from .looks import write_json
from .tables import is_terminal, painted

_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}
_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}
WIDTH = 84
INDENT = 20


def doctor(options: argparse.Namespace) -> int:
    """Exit status 0, or 1 if something is wrong."""
    findings: list[Finding] = []
    for finding in examine(options):
        findings.append(finding)
        if not options.json:
            write(finding)
    well = all(finding.level != "problem" for finding in findings)
    if options.json:
        write_json({"ok": well, "findings": [msgspec.structs.asdict(f) for f in findings]})
    return EXIT_OK if well else EXIT_FAILED


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    """Look at everything, in a few seconds."""
    yield from versions.look()
    yield from model_libraries.look()
    yield host.memory()
    yield host.open_files()
    try:
        folder = options.runtime_dir or runtime_dir()
    except DflashError as error:
        yield Finding(name="sockets", says=error.message, level="problem")
        return
    place = host.sockets(folder)
    yield place
    if place.level != "problem":
        yield from host.daemon(folder)


def room() -> int:
    """How many columns a terminal has beside the names."""
    return shutil.get_terminal_size().columns - INDENT if is_terminal() else WIDTH


def write(finding: Finding) -> None:
    """A paragraph: its state, what was found, and advice below it."""
    width = min(WIDTH, max(INDENT, room()))
    lines = textwrap.wrap(finding.says, width) or [""]
    advice = textwrap.wrap(f"→ {finding.advice}", width) if finding.advice else []
    mark = f"{_MARKS[finding.level]:8}"
    rest = f"{finding.name:11} {lines[0]}\n"
    rest += "".join(f"{'':{INDENT}}{line}\n" for line in (*lines[1:], *advice))
    sys.stdout.write(painted(_COLOURS[finding.level], mark) + rest)
    sys.stdout.flush()
