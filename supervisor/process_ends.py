"""What a process's end tells: its exit status, and the last words of its log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals

from .exit_statuses import EXIT_CONFIGURATION

CRASHES = ("Fatal Python error: ", "Timeout (")
"""How faulthandler begins: a signal that ends the process, or a watchdog that was not re-armed."""

ROUTINE = (" INFO ", " request=")
"""In a line of a worker's log: nothing was wrong, or with one request only: its client's matter."""


def described(status: int) -> str:
    """An exit status in words."""
    if status == 0:
        return "left without being asked"
    if status == EXIT_CONFIGURATION:
        return "found its configuration unusable (exit status 78)"
    if status < 0:
        try:
            return f"was killed by {Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def last_words(log_tail: str) -> str:
    """What a log ends with, if it tells of trouble: routine lines explain nothing.

    Of a crash in native code that is what it was and where, not the last of many stacks' lines.
    """
    lines = log_tail.strip().splitlines()
    for place, line in reversed(list(enumerate(lines))):
        if line.startswith(CRASHES):
            return f"{line}{top_frame(lines[place + 1 :])}"[-500:]
    return "" if not lines or any(mark in lines[-1] for mark in ROUTINE) else lines[-1][-500:]


def top_frame(lines: Sequence[str]) -> str:
    """Where the thread was that crashed, by faulthandler: the current thread, else the first."""
    heads = [place for place, line in enumerate(lines) if "most recent call first" in line]
    current = [place for place in heads if lines[place].startswith("Current thread")]
    for place in (*current, *heads)[:1]:
        frame = "".join(lines[place + 1 : place + 2]).strip()
        return f" at {frame}" if frame.startswith("File ") else ""
    return ""
