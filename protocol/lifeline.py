"""A child process dies with its supervisor, whatever it is doing.

Three layers, since each has a gap: the kernel's own signal (Linux; needs nothing of us), the end
of the stdin pipe (everywhere, but not while C code holds the GIL), and on macOS the exit event of
the supervisor's pid.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_STDIN = 0
_ORPHANED = 1


def hold(supervisor_pid: int) -> None:
    """Tie this process to ``supervisor_pid``; call it before anything that takes time."""
    faulthandler.enable()
    if sys.platform == "linux":
        _die_with_parent()
    elif sys.platform == "darwin":
        _start("lifeline-exit", _exit_watch(supervisor_pid))
    # Only after the layers above: a supervisor that died before them sent no signal.
    if os.getppid() != supervisor_pid:
        _leave("not the supervisor's child")
    _start("lifeline-stdin", _watch_stdin)


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started us ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _exit_watch(pid: int) -> Callable[[], None]:
    """Register for the exit of ``pid`` (macOS); the result blocks until then, and leaves."""
    if sys.platform != "darwin":
        raise NotImplementedError
    queue = select.kqueue()
    wanted = select.kevent(
        pid,
        filter=select.KQ_FILTER_PROC,
        flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
        fflags=select.KQ_NOTE_EXIT,
    )
    try:
        queue.control([wanted], 0)
    except ProcessLookupError:
        _leave("supervisor had gone")

    def watch() -> None:
        while not queue.control(None, 1):
            pass
        _leave("supervisor exited")

    return watch


def _watch_stdin() -> None:
    """Block until the supervisor's end of our stdin closes, and leave."""
    try:
        while os.read(_STDIN, 4096):
            pass
    except OSError as error:
        _leave(f"stdin unusable: {error}")
    _leave("stdin closed")


def _start(name: str, target: Callable[[], None]) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()


def _leave(why: str) -> None:
    log.error("supervisor_gone why=%r", why)
    os._exit(_ORPHANED)
