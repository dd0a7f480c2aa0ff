"""Engine threads of this process: none of them may outlive its interpreter."""

from __future__ import annotations

import atexit
import os

from ..loop.thread import EngineThread
from .thread_end import ThreadEnd

STOP_S = 30.0
"""After a stop: how long an engine may finish the step it is in."""

_running: dict[EngineThread, ThreadEnd] = {}
"""Those whose end nobody has seen yet."""


def start(engine: EngineThread, end: ThreadEnd) -> None:
    """Start an engine's thread, whose end is waited for when the interpreter leaves."""
    for other, its_end in list(_running.items()):  # of hosts that were dropped
        if other.ended and its_end.wait(0):
            _running.pop(other, None)
    engine.start()
    _running[engine] = end


def stop(engine: EngineThread) -> None:
    """Ask it to stop, without waiting; also from a finaliser."""
    engine.do(lambda loop, _: loop.stop())


def is_over(engine: EngineThread, end: ThreadEnd) -> bool:
    """Wait until a stopped engine's thread is over; False if that takes longer than ``STOP_S``."""
    if not (engine.join(STOP_S) and end.wait(STOP_S)):
        return False
    _running.pop(engine, None)
    return True


os.register_at_fork(after_in_child=_running.clear)


@atexit.register
def _stop_all() -> None:
    """An interpreter that ends under a computing thread crashes: let it finish its step."""
    for engine in list(_running):
        stop(engine)
    for engine, end in list(_running.items()):
        is_over(engine, end)
