"""The live picture of ``dflashctl top`` on a terminal, which is left as it was found."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from .rich_tables import Fitting
from .screen import shown
from .top_frame import Frame, parts

LEAVE_KEYS = frozenset(b"qQ\x04")
ESCAPE = b"\x1b"
"""Alone; other keys, such as arrows, begin with it."""


def live(
    frames: Callable[[Callable[[], bool]], Iterator[Frame]], delay_s: float, limit: int | None
) -> None:
    """Show frames until q or Ctrl-C, or ``limit`` of them."""
    console = Console(highlight=False, emoji=False)
    try:
        with (
            ended_by_signals(),
            keys() as pressed,
            Live(console=console, screen=True, auto_refresh=False) as screen,
        ):
            for frame in islice(frames(lambda: pressed(delay_s)), limit):
                screen.update(picture(frame), refresh=True)
    except KeyboardInterrupt:
        return  # the usual way to leave


def picture(frame: Frame) -> RenderableType:
    """One frame as the terminal shows it; what is below its last line is cut off."""
    shapes: list[RenderableType] = [
        Text(shown(part), end="", no_wrap=True) if isinstance(part, str) else Fitting(part)
        for part in parts(frame)
    ]
    return Group(*shapes, Text("\nq leaves", style="dim"))


@contextmanager
def keys() -> Generator[Callable[[float], bool]]:
    """A wait that ends early, and is true, when a key that leaves was pressed."""
    if not sys.stdin.isatty():
        yield lambda wait_s: bool(time.sleep(wait_s))
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            if select.select([fd], [], [], left_s)[0]:
                typed = os.read(fd, 64)
                if not typed or typed[0] in LEAVE_KEYS or typed == ESCAPE:
                    return True  # also when the terminal is gone
        return False

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def ended_by_signals() -> Generator[None]:
    """A polite end from outside also leaves the terminal as it was."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
