"""The real daemon with the fake worker's command: ``fake_daemon.py CONFIG``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from dflashd.supervisor.logs import log
from dflashd.supervisor.serve import run

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")

BLOCK_S = float(os.environ.get("DFLASHD_FAKE_BLOCK_S", "0"))

if __name__ == "__main__":
    if BLOCK_S:  # Python runs handlers in the main thread, which is the loop's
        signal.signal(signal.SIGUSR1, lambda *_: time.sleep(BLOCK_S))
    log.configure()
    command = (sys.executable, "-P", str(FAKE_WORKER))
    sys.exit(run(Path(sys.argv[1]), worker_command=command))
