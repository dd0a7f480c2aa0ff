"""How soon a small command answers, beside bare imports of what it cannot do without."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

ROUNDS = 15
IMPORTS = "import zmq, msgpack"
STATUS = "import sys; from dflashd.supervisor.cli import main; sys.exit(main(sys.argv[1:]))"


def figures() -> dict[str, float]:
    """``dflashctl status`` where no daemon is: all but the daemon's own part of it."""
    with tempfile.TemporaryDirectory() as folder:
        bare, status = [], []
        for _ in range(ROUNDS):
            bare.append(seconds("-c", IMPORTS))
            status.append(seconds("-c", STATUS, "--runtime-dir", folder, "status"))
    return {
        "imports_ms": 1e3 * min(bare),
        "status_ms": 1e3 * min(status),
        "status_over_imports_ratio": min(status) / min(bare),
    }


def seconds(*arguments: str) -> float:
    """How long one interpreter takes, from its start to its end."""
    began_s = time.perf_counter()
    _ = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return time.perf_counter() - began_s
