"""The real daemon with the fake worker's command: ``fake_daemon.py CONFIG``."""

from __future__ import annotations

import sys
from pathlib import Path

from dflashd.supervisor import log
from dflashd.supervisor.serve import run

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")

if __name__ == "__main__":
    log.configure()
    command = (sys.executable, "-P", str(FAKE_WORKER))
    sys.exit(run(Path(sys.argv[1]), worker_command=command))
