"""A connection to the daemon, or a sentence that says that there is none.

What only a conversation needs is imported where one begins: it takes longer than an answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from ...protocol.errors import DflashError, ErrorCode
from .exits import NoDaemon

if TYPE_CHECKING:
    from ...protocol.asker import Asker
    from ...protocol.sync import Client

C = TypeVar("C", "Asker", "Client")

ABSENT = frozenset({ErrorCode.not_found, ErrorCode.worker_lost, ErrorCode.protocol})
"""Whoever listens, if anybody does, is no daemon that answers."""


def connected(options: argparse.Namespace) -> AbstractContextManager[Client]:
    """A client of the daemon meant by the options. Raises NoDaemon at once if nobody listens."""
    from ...protocol.sync import Client

    client = Client(options.runtime_dir, connect=options.connect, key=options.key, wait_s=0)
    return _opened(client)


def asking(options: argparse.Namespace) -> AbstractContextManager[Asker | Client]:
    """The same for commands that generate nothing: without an event loop, on this machine."""
    if options.connect or options.key:
        return connected(options)
    from ...protocol.asker import Asker

    return _opened(Asker(options.runtime_dir))


@contextmanager
def _opened(client: C) -> Generator[C]:
    try:
        _ = client.__enter__()
    except DflashError as error:
        if error.code in ABSENT:
            raise NoDaemon(error.message) from error
        raise
    try:
        yield client
    finally:
        client.close()
