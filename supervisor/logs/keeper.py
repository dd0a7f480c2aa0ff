"""The thread that bounds the workers' logs: a slow or full disk must not stop the loop."""

from __future__ import annotations

import threading
from typing import Self, final

from .log import line, log
from .worker_logs import LOOK_S, WorkerLogs

LEAVE_S = 1.0


@final
class LogKeeper:
    """Looks at the logs while it is entered."""

    def __init__(self, logs: WorkerLogs) -> None:
        self._logs = logs
        self._stop = threading.Event()
        # A daemon thread: one that hangs in a dead file system must not keep us from leaving.
        self._thread = threading.Thread(target=self._run, name="log-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LEAVE_S)

    def _run(self) -> None:
        rest_s = LOOK_S
        while not self._stop.wait(rest_s):
            try:
                rest_s = self._logs.keep()
            except Exception:  # noqa: BLE001 (the thread's border: logs stay bounded after a mistake)
                log.exception(line("internal_error", cause="LogKeeper"))
                rest_s = LOOK_S
