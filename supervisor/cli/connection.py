"""A connection to the daemon, or a sentence that says that there is none.

What only a conversation needs is imported where one begins: it takes longer than an answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...protocol.errors import DflashError, ErrorCode
from .exits import NoDaemon

if TYPE_CHECKING:
    from ...protocol.question import Asker
    from ...protocol.sync import Client

ABSENT = frozenset({ErrorCode.not_found, ErrorCode.worker_lost, ErrorCode.protocol})
"""Whoever listens, if anybody does, is no daemon that answers."""


@contextmanager
def connected(options: argparse.Namespace) -> Generator[Client]:
    """A client of the daemon meant by the options. Raises NoDaemon at once if nobody listens."""
    from ...protocol.sync import Client

    client = Client(options.runtime_dir, connect=options.connect, key=options.key, wait_s=0)
    try:
        client.__enter__()
    except DflashError as error:
        if error.code in (ErrorCode.unauthorised, ErrorCode.bad_request):
            raise
        raise NoDaemon(error.message) from error
    try:
        yield client
    finally:
        client.close()


@contextmanager
def asking(options: argparse.Namespace) -> Generator[Asker | Client]:
    """Like :func:`connected`, for commands that ask and leave: without the client where it can."""
    if options.connect:
        with connected(options) as client:
            yield client
        return
    from ...protocol.question import Asker

    asker = Asker(options.runtime_dir)
    try:
        asker.__enter__()
    except DflashError as error:
        if error.code in ABSENT:
            raise NoDaemon(error.message) from error
        raise
    try:
        yield asker
    finally:
        asker.close()
