"""From nothing to a model that serves: the daemon's spawn beside a bare ``mlx_lm.load``."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dflashd.worker.checkpoints.sources import resolve

from .daemon import running_daemon
from .workload import PAIR, SILENCE

ROUNDS = 4
BARE_LOAD = (
    "import sys, mlx_lm\n"
    "loaded = mlx_lm.load(sys.argv[1])\n"
    "print('loaded', flush=True)\n"
    "sys.stdin.read()\n"
)


def figures() -> dict[str, float]:
    """Seconds to ready, in turn, each from a process that does not exist yet."""
    folder = resolve(PAIR.target, SILENCE, "target")
    spawns: list[float] = []
    loads: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="dfb", dir="/tmp") as home,
        running_daemon(Path(home), {"pair": PAIR}) as client,
    ):
        for round_ in range(ROUNDS):
            began = time.monotonic()
            client.spawn("pair")
            spawn_s = time.monotonic() - began
            client.retire("pair")
            bare_s = _bare_load_s(folder)
            if round_:  # the first only brings files and compiled code into the system's cache
                spawns.append(spawn_s)
                loads.append(bare_s)
    ready_s, load_s = statistics.median(spawns), statistics.median(loads)
    return {
        "ready_s": ready_s,
        "bare_load_s": load_s,
        "ready_over_bare_load_ratio": ready_s / load_s,
    }


def _bare_load_s(folder: Path) -> float:
    """Seconds until a fresh Python has the target in memory, as mlx-lm loads it."""
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", BARE_LOAD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"loaded\n"
        return time.monotonic() - began
