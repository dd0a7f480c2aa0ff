"""Run benchmarks by name; with ``--json`` one line each, else a table each."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module

from dflashd.worker.machine import blas, jit

NAMES = ("decode", "rows", "cache", "group", "broker", "spawn", "gateway", "command")


def main() -> int:
    """Run what the command line names, all benchmarks by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}")
    report = blas.prepare()
    jit.prepare(private=True)
    from .machine import machine

    facts = machine(report)
    for name in options.names or NAMES:
        print(f"running {name} …", file=sys.stderr)
        figures: dict[str, float] = import_module(f".{name}", __package__).figures()
        rounded = {key: float(f"{value:.4g}") for key, value in figures.items()}
        if options.json:
            line = {"benchmark": name, "machine": facts, "figures": rounded}
            print(json.dumps(line), flush=True)
        else:
            print_table(name, facts, rounded)
    return 0


def print_table(name: str, facts: dict[str, str | int], figures: dict[str, float]) -> None:
    """The figures of one benchmark, for a person."""
    print(f"\n{name} on {facts['cpu']}, {facts['cpus']} CPUs, BLAS {facts['blas']}")
    width = max(len(key) for key in figures)
    for key, value in figures.items():
        print(f"  {key:<{width}}  {value:g}")


if __name__ == "__main__":
    sys.exit(main())
