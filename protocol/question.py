"""One question and its answer, without an event loop: for programs that ask and leave.

Importing asyncio takes longer than the daemon takes to answer.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import zmq

from . import absence
from .codec import Message, decode, decode_body, encode
from .envelope import BODY_LIMIT_BYTES
from .errors import Malformed, Stranger
from .messages import Failed, Header, Snapshot, SnapshotBody, Status, ToClient
from .paths import Endpoints, runtime_dir as default_runtime_dir

TIMEOUT_S = 10.0


def ask_status(runtime_dir: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> SnapshotBody:
    """The state of the daemon of ``runtime_dir``. Raises DflashError.

    ``not_found``: nobody listens; ``worker_lost``: no answer within ``timeout_s``.
    """
    url = Endpoints(runtime_dir or default_runtime_dir()).control
    _knock(url, timeout_s)
    message = _ask(url, Status(id=os.urandom(16)), timeout_s)
    if not isinstance(message.header, Snapshot):
        raise absence.stranger(url)
    return decode_body(SnapshotBody, message.body)


def _knock(url: str, timeout_s: float) -> None:
    """Learn at once that nobody is there: libzmq itself would go on trying."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(url.removeprefix("ipc://"))
        except TimeoutError as error:
            raise absence.mute(url) from error
        except OSError as error:
            raise absence.nobody(url) from error


def _ask(url: str, question: Header, timeout_s: float) -> Message:
    until = time.monotonic() + timeout_s
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.MAXMSGSIZE, BODY_LIMIT_BYTES)
        dealer.connect(url)
        dealer.send_multipart(encode(question), zmq.DONTWAIT)
        id: bytes | None = getattr(question, "id", None)
        while dealer.poll(max(0, int(1e3 * (until - time.monotonic())))):
            try:
                message = decode(dealer.recv_multipart(), ToClient)
            except Stranger as error:
                raise absence.stranger(url) from error
            except Malformed as error:
                if error.request_id in (id, None):
                    raise
                continue
            if getattr(message.header, "id", None) in (id, None):
                if isinstance(message.header, Failed):
                    raise message.header.error()
                return message
        raise absence.mute(url)
