"""A supervisor's stand-in that only starts a worker, tells its pid, and waits to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys


def main() -> None:
    """Start the worker with the environment given as JSON on stdin; stdin's fate is argv[1].

    ``pipe``: the worker's stdin ends with this process. ``held``: the caller holds its other end,
    so that only the kernel can tell the worker.
    """
    environment: dict[str, str] = json.loads(sys.stdin.readline())
    environment["DFLASHD_SUPERVISOR_PID"] = str(os.getpid())
    stdin = subprocess.PIPE if sys.argv[1] == "pipe" else int(sys.argv[2])
    worker = subprocess.Popen(
        [sys.executable, "-m", "dflashd.worker"],
        stdin=stdin,
        stdout=sys.stderr,
        stderr=sys.stderr,
        env=environment,
        start_new_session=True,
    )
    sys.stdout.write(f"{worker.pid}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
