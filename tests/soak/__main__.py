"""``python -m tests.soak``: the simulation for millions of steps, then real processes."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys

from .living import Findings, live


def main() -> int:
    """Soak; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="with real processes")
    parser.add_argument("--steps", type=int, default=3_000_000, help="of the simulation; 0: none")
    parser.add_argument("--seed", type=int, help="of all chances; default: another each time")
    parser.add_argument("--no-real", action="store_true", help="without the two real models")
    parser.add_argument("--json", action="store_true", help="one line at the end")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    tell(f"seed {seed}")
    if options.steps:
        steps = ["--steps", str(options.steps), "--seed", str(seed)]
        simulated = subprocess.run([sys.executable, "-m", "tests.simulation", *steps], check=False)
        if simulated.returncode:
            return simulated.returncode
    if not options.minutes:
        return 0
    findings = live(options.minutes * 60, seed=seed, real=not options.no_real, tell=tell)
    sys.stdout.write(as_json(findings) if options.json else as_text(findings))
    return int(bool(findings.problems))


def tell(sentence: str) -> None:
    """Say how it goes."""
    sys.stderr.write(sentence + "\n")


def as_json(findings: Findings) -> str:
    """One line for a program."""
    resident = findings.resident_bytes
    line = {
        "ok": not findings.problems,
        "seconds": round(findings.seconds, 1),
        "requests": findings.asked,
        "ends": findings.ends,
        "commands": findings.commands,
        "faults": findings.faults,
        "supervisor_mib": [round(b / 2**20, 1) for b in resident[:: max(1, len(resident) // 10)]],
        "problems": findings.problems,
    }
    return json.dumps(line) + "\n"


def as_text(findings: Findings) -> str:
    """A few lines for a person."""
    counts = {
        "requests": {"asked": findings.asked, **findings.ends},
        "commands": findings.commands,
        "faults": findings.faults,
    }
    lines = [f"{findings.seconds:.0f} s"]
    for title, table in counts.items():
        lines.append(f"{title}: " + ", ".join(f"{k} {v}" for k, v in sorted(table.items())))
    mib = [b / 2**20 for b in findings.resident_bytes]
    if mib:
        lines.append(f"supervisor: {mib[0]:.1f} MiB at first, {mib[-1]:.1f} at last")
    lines += [f"PROBLEM: {problem}" for problem in findings.problems] or ["nothing was found"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
