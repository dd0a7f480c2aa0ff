"""The real daemon with the fake worker's command: ``fake_daemon.py CONFIG``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
BLOCK_S = float(os.environ.get("DFLASHD_FAKE_BLOCK_S", "0"))
CLOCK = Path(os.environ.get("DFLASHD_FAKE_DIR", "")) / "clock"
"""By how many seconds the machine's clock was set; read at SIGUSR2."""

known, shift_s = time.time, [0.0]


def read_clock() -> None:
    """Have the time of day be another from now on; in this process, which is the one tested."""
    shift_s[0] = float(CLOCK.read_text())


def main() -> int:
    """Serve until the end; the exit status."""
    time.time = lambda: known() + shift_s[0]
    from dflashd.supervisor.logs import log  # after the clock was replaced
    from dflashd.supervisor.serve import run

    # Python runs handlers in the main thread, which is the loop's.
    signal.signal(signal.SIGUSR2, lambda *_: read_clock())
    if BLOCK_S:
        signal.signal(signal.SIGUSR1, lambda *_: time.sleep(BLOCK_S))
    log.configure()
    return run(Path(sys.argv[1]), worker_command=(sys.executable, "-P", str(FAKE_WORKER)))


if __name__ == "__main__":
    sys.exit(main())
