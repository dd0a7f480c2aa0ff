"""Say what this machine computes with, and what is wrong: ``python -m dflashd.worker.doctor``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from .findings import Finding, examine

_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="dflashctl doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    try:
        return _report(as_json=options.json)
    except BrokenPipeError:
        # The reader has seen enough; the interpreter's own last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _report(*, as_json: bool) -> int:
    findings: list[Finding] = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            sys.stdout.write(_told(finding))
            sys.stdout.flush()
    well = all(finding.level != "problem" for finding in findings)
    if as_json:
        account = {"ok": well, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(account) + "\n")
    return 0 if well else 1


def _told(finding: Finding) -> str:
    lines = textwrap.wrap(finding.says, 84) or [""]
    advice = textwrap.wrap(f"→ {finding.advice}", 84) if finding.advice else []
    first = f"{_MARKS[finding.level]:8}{finding.name:11} {lines[0]}\n"
    return first + "".join(f"{'':20}{line}\n" for line in (*lines[1:], *advice))


if __name__ == "__main__":
    sys.exit(main())
