"""Questions and their answers without an event loop: for programs that ask and leave.

Importing asyncio takes longer than the daemon takes to answer.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self, final

import zmq

from . import absence
from .codec import Message, decode, decode_body, encode
from .credit import ReceiveWindow
from .envelope import BODY_LIMIT_BYTES
from .errors import Malformed, Stranger
from .messages import (
    Accepted,
    AddCredit,
    CacheBody,
    CacheState,
    Cancel,
    Done,
    EventBody,
    Failed,
    Happened,
    Header,
    Hello,
    LogPart,
    Logs,
    Measured,
    Metrics,
    MetricsBody,
    Pin,
    ReadCache,
    Snapshot,
    SnapshotBody,
    Status,
    Subscribe,
    ToClient,
    Welcome,
)
from .paths import Endpoints, runtime_dir as default_runtime_dir
from .told import LogText, log_reader, read_event

TIMEOUT_S = 10.0
KNOCK_AGAIN_S = 0.01
LINGER_MS = 100
"""How long a farewell may take to leave."""


def ask_status(runtime_dir: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> SnapshotBody:
    """The state of the daemon of ``runtime_dir``; errors as of :class:`Asker`."""
    with Asker(runtime_dir, timeout_s=timeout_s) as asker:
        return asker.status()


@final
class Asker:
    """One connection to the daemon of ``runtime_dir`` for one question after another.

    Its questions are those of :class:`Client` of the same name. They raise DflashError:
    ``not_found``: nobody listens; ``worker_lost``: nothing was heard for ``timeout_s``. Entering
    it fails where no daemon answers.
    """

    def __init__(self, runtime_dir: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = Endpoints(runtime_dir or default_runtime_dir()).control
        self._timeout_s = timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._watched: set[bytes] = set()

    def __enter__(self) -> Self:
        self._knock()
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, LINGER_MS)
        self._dealer.setsockopt(zmq.MAXMSGSIZE, BODY_LIMIT_BYTES)
        self._dealer.connect(self._url)
        try:
            _ = self._ask(Hello(client="dflashd.protocol"), Welcome)
        except BaseException:
            self._context.destroy(0)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is still watched, and disconnect. Idempotent."""
        context, self._context = self._context, None
        if context is not None:
            for id in self._watched:  # left before its end
                self._send(Cancel(id=id))
            context.destroy()

    def status(self) -> SnapshotBody:
        """The daemon's whole state."""
        return decode_body(SnapshotBody, self._ask(Status(id=new_id()), Snapshot).body)

    def metrics(self) -> MetricsBody:
        """All metrics of the daemon."""
        return decode_body(MetricsBody, self._ask(Metrics(id=new_id()), Measured).body)

    def cache(self, model: str) -> CacheBody:
        """The state of a loaded model's prefix cache."""
        question = ReadCache(id=new_id(), model=model)
        return decode_body(CacheBody, self._ask(question, CacheState).body)

    def pin(self, model: str, *, pinned: bool = True) -> None:
        """Keep ``model`` from being evicted or unloaded for being idle, or no longer."""
        _ = self._ask(Pin(id=new_id(), model=model, pinned=pinned), Done)

    def events(self, *, last: int | None = None) -> Iterator[EventBody]:
        """The ``last`` events of the daemon (None: all that it keeps)."""
        return map(read_event, self._watch(Subscribe(id=new_id(), last=last)))

    def logs(self, model: str, *, lines: int = 100) -> Iterator[LogText]:
        """The last ``lines`` of the log of ``model``'s worker, in pieces that need not be lines."""
        parts = map(log_reader(), self._watch(Logs(id=new_id(), model=model, lines=lines)))
        return (part for part in parts if part is not None)

    def _knock(self) -> None:
        """Learn at once that nobody is there: libzmq itself would go on trying."""
        path = self._url.removeprefix("ipc://")
        until_s = time.monotonic() + self._timeout_s
        while time.monotonic() < until_s:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(self._timeout_s)
                try:
                    probe.connect(path)
                except BlockingIOError:  # Linux: somebody listens, whose queue is full just now
                    time.sleep(KNOCK_AGAIN_S)
                except TimeoutError:
                    break
                except OSError as error:
                    raise absence.nobody(self._url) from error
                else:
                    return
        raise absence.mute(self._url)

    def _ask(self, question: Header, answer: type[Header]) -> Message:
        self._send(question)
        message = self._hear(question)
        if not isinstance(message.header, answer):
            raise absence.stranger(self._url)
        return message

    def _watch(self, question: Subscribe | Logs) -> Iterator[Message]:
        window = ReceiveWindow()
        self._send(question)
        self._watched.add(question.id)
        while not isinstance((message := self._hear(question)).header, Done):
            if not isinstance(message.header, Happened | LogPart) or not window.arrived():
                raise absence.stranger(self._url)
            yield message
            if granted := window.consumed():
                self._send(AddCredit(id=question.id, chunks=granted))
        self._watched.discard(question.id)

    def _send(self, header: Header) -> None:
        frames = encode(header)
        _ = decode(frames, type(header))  # what the daemon would refuse is refused here
        self._dealer.send_multipart(frames, zmq.DONTWAIT)

    def _hear(self, question: Header) -> Message:
        """The next message about a question. Raises what it failed with."""
        id: bytes | None = getattr(question, "id", None)
        until_s = time.monotonic() + self._timeout_s
        while self._dealer.poll(max(0, int(1e3 * (until_s - time.monotonic())))):
            try:
                message = decode(self._dealer.recv_multipart(), ToClient)
            except Stranger as error:
                raise absence.stranger(self._url) from error
            except Malformed as error:
                if error.request_id in (id, None):
                    raise
                continue
            if getattr(message.header, "id", None) not in (id, None):
                continue
            if isinstance(message.header, Failed):
                raise message.header.error()
            if isinstance(message.header, Accepted):
                until_s = time.monotonic() + self._timeout_s
                continue
            return message
        raise absence.mute(self._url)


def new_id() -> bytes:
    """An id that nobody else has chosen."""
    return os.urandom(16)
