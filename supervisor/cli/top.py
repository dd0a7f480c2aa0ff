"""``dflashctl top``: look at the daemon again and again; looking changes nothing."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import islice

from ...protocol.sync import Client
from ..exit_statuses import EXIT_OK
from .connection import connected
from .looks import write_json
from .tables import is_terminal, show
from .top_frame import Frame, Look, frame_of, parts

EVENTS_SHOWN = 12


def top(options: argparse.Namespace) -> int:
    """A live picture on a terminal; elsewhere one frame, or as many as are asked for."""
    delay_s: float = options.delay
    with connected(options) as client:
        if is_terminal() and not options.json:
            from .top_screen import live

            live(lambda wait: frames(client, wait), delay_s, options.frames)
            return EXIT_OK
        # The first picture would have no rates yet.
        pictures = frames(client, lambda: bool(time.sleep(delay_s)))
        for frame in islice(pictures, 1, 1 + (options.frames or 1)):
            if options.json:
                write_json(frame)
            else:
                show(*parts(frame))
    return EXIT_OK


def frames(client: Client, leaves: Callable[[], bool]) -> Iterator[Frame]:
    """A picture after each wait of ``leaves``, until that is true."""
    before: Look | None = None
    while True:
        after = look(client)
        yield frame_of(before, after)
        if leaves():
            return
        before = after


def look(client: Client) -> Look:
    """Ask for everything once."""
    return Look(
        snapshot=client.status(),
        metrics=client.metrics(),
        at_s=time.monotonic(),
        events=tuple(client.events(last=EVENTS_SHOWN)),
    )
