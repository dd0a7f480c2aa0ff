"""``dflashctl pull``: it needs the hub's library, so another Python does it."""

from __future__ import annotations

import argparse
import os
import sys


def pull(options: argparse.Namespace) -> int:
    """Fetch a model."""
    return become("dflashd.worker.pull", options.rest)


def become(module: str, arguments: list[str]) -> int:
    """Replace this process by ``python -m module``: its signals and exit status are then ours."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-P", "-m", module, *arguments]
    os.execv(sys.executable, command)  # noqa: S606 (no shell is wanted)
