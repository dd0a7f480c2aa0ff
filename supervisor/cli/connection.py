"""A connection to the daemon, or a sentence that says that there is none."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.sync import Client
from .exits import NoDaemon


@contextmanager
def connected(options: argparse.Namespace) -> Generator[Client]:
    """A client of the daemon meant by the options. Raises NoDaemon at once if nobody listens."""
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
