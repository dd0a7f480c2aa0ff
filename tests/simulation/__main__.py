"""``python -m tests.simulation``: search for broken promises, or replay one."""

from __future__ import annotations

import argparse
import random
import sys
import time

from .running import replay, searched, story
from .script import loads

CHUNK_STEPS = 20_000
"""Between two lines that say how far it is."""


def main() -> int:
    """Search from ``--seed`` until the steps or minutes are over; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000_000, help="steps in all")
    parser.add_argument("--minutes", type=float, help="instead of --steps: so long")
    parser.add_argument("--seed", type=int, help="the first script's; default: another each time")
    parser.add_argument("--replay", metavar="SCRIPT", help="run this script and tell its story")
    options = parser.parse_args()
    if options.replay is not None:
        return replayed(options.replay)
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    began_s, done = time.monotonic(), 0
    while not over(options.steps, options.minutes, done, time.monotonic() - began_s):
        failure = searched(seed + done, CHUNK_STEPS)
        done += CHUNK_STEPS
        if failure is not None:
            sys.stdout.write(f"{failure}\n")
            return 1
        rate = done / (time.monotonic() - began_s)
        sys.stderr.write(f"{done:>12,} steps from seed {seed}, {rate:,.0f}/s\n")
    return 0


def over(steps: int, minutes: float | None, done: int, elapsed_s: float) -> bool:
    """Whether the search has gone on long enough."""
    return done >= steps if minutes is None else elapsed_s >= minutes * 60


def replayed(text: str) -> int:
    """Tell a script's story; 1 if it breaks a promise."""
    script = loads(text)
    story(script, tell)
    return int(replay(script) is not None)


def tell(line: str) -> None:
    """Write one line."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
