"""The real daemon with workers that only stream: ``stream_daemon.py CONFIG``."""

from __future__ import annotations

import sys
from pathlib import Path

from dflashd.supervisor.logs import log
from dflashd.supervisor.serve import run

WORKER = Path(__file__).with_name("stream_worker.py")

if __name__ == "__main__":
    log.configure()
    sys.exit(run(Path(sys.argv[1]), worker_command=(sys.executable, "-P", str(WORKER))))
