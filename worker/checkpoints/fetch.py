"""A model's files, fetched by a process of its own.

A download waits for a network, sometimes for ever, and a conversion imports mlx. A process can be
ended in the middle of either, and its memory goes with it; a thread cannot.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

import msgspec

from ...protocol.errors import DflashError, ErrorCode
from ..errand import Errand
from . import fetch_process
from .fetch_process import Fetched, Report, Told, Unfetched

STALL_S = 240.0
"""So long may a fetch go on without any progress. Shorter than the daemon's ``load_stall_s``, so
that a hub that stands still costs this load and not the worker."""

_LINE_BYTES = 2**16


def fetch(spec: str, errand: Errand, *, stall_s: float = STALL_S) -> Path:
    """The folder of ``spec``, which a child process brings here.

    Raises:
        DflashError: what the child says; load_failed if it ends without a word or stands still.
        Withdrawn: the errand was called off; the child is gone.
    """
    command = [sys.executable, "-P", "-m", fetch_process.__name__, str(os.getpid()), spec]
    try:
        # A group of its own: what the child starts ends with it.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
    except OSError as error:
        raise DflashError(
            ErrorCode.load_failed, f"{spec} cannot be fetched: no process starts ({error})"
        ) from error
    with child, contextlib.ExitStack() as over:
        over.callback(_kill, child)
        over.enter_context(errand.ended_by(lambda: _kill(child)))
        return _follow(cast("IO[bytes]", child.stdout), spec, errand, stall_s)


def _follow(pipe: IO[bytes], spec: str, errand: Errand, stall_s: float) -> Path:
    """Pass on what the child reports until it says how it ended."""
    fd, text = pipe.fileno(), b""
    until_s = time.monotonic() + stall_s
    while True:
        read = _read(fd, until_s)
        errand.check()
        if read is None:
            raise DflashError(
                ErrorCode.load_failed,
                f"fetching {spec} made no progress for {stall_s:g} s; load again, what is already "
                "here is kept",
            )
        if not read:
            raise DflashError(
                ErrorCode.load_failed,
                f"fetching {spec} ended without a word; see the log, and load again",
            )
        *lines, text = (text + read).split(b"\n")
        for line in lines:
            match msgspec.json.decode(line, type=Told):
                case Report(stage=stage, done=done, total=total, unit=unit):
                    errand(stage, done, total, unit)
                case Fetched(folder=folder):
                    return Path(folder)
                case Unfetched(code=code, message=message):
                    raise DflashError(code, message)
            until_s = time.monotonic() + stall_s


def _read(fd: int, until_s: float) -> bytes | None:
    """What comes next, nothing at the end; None: nothing came in time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
        return None
    return os.read(fd, _LINE_BYTES)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and all it started, without waiting; nothing once it was reaped."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
