"""One fetch of a model at a time, by all processes of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Generator
from pathlib import Path

from ..errand import Progress

LOOK_EVERY_S = 1.0


@contextlib.contextmanager
def alone(lock: Path, progress: Progress) -> Generator[None]:
    """Hold the file ``lock`` inside the block; a killed holder frees it. Raises OSError.

    Who waits tells so: another one's download moves, and is no standstill. How long one may stand
    still is its own process's to bound.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("wb") as file:
        waited = 0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress("wait for another pull", waited, 0, "s")
                time.sleep(LOOK_EVERY_S)
                waited += 1
        yield
