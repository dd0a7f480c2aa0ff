"""Questions and their answers without an event loop: for programs that ask and leave.

Importing asyncio takes longer than the daemon takes to answer.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Self, TypeVar, final

import zmq

from . import absence, question
from .arguments import Patience, checked
from .codec import Message, decode, encode
from .credit import ReceiveWindow
from .envelope import BODY_LIMIT_BYTES
from .errors import Malformed, Stranger
from .messages import (
    Accepted,
    AddCredit,
    CacheBody,
    Cancel,
    ConfigBody,
    Done,
    Event,
    EventBody,
    Failed,
    Happened,
    Hello,
    LogPart,
    MetricsBody,
    ReloadBody,
    SnapshotBody,
    ToClient,
)
from .paths import Endpoints, runtime_dir as default_runtime_dir
from .question import Feed, OnEvent, Question
from .told import LogText

T = TypeVar("T")

TIMEOUT_S = 10.0
KNOCK_AGAIN_S = 0.01
LINGER_MS = 100
"""How long a farewell may take to leave."""

_HELLO = encode(Hello(client="dflashd.protocol"))


def ask_status(runtime_dir: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> SnapshotBody:
    """The state of the daemon of ``runtime_dir``; errors as of :class:`Asker`."""
    with Asker(runtime_dir, timeout_s=timeout_s) as asker:
        return asker.status()


@final
class Asker:
    """One connection to the daemon of ``runtime_dir`` for one question after another.

    Its questions are those of :class:`Client` of the same name; what is left before its end is
    cancelled. They raise DflashError, ``worker_lost`` where the daemon went, or did not say a word
    for ``timeout_s`` though it was greeted. Entering it fails where no daemon answers.
    """

    def __init__(self, runtime_dir: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = Endpoints(runtime_dir or default_runtime_dir()).control
        self._timeout_s: float = checked("timeout_s", timeout_s, Patience)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._poller = zmq.Poller()
        self._monitor: zmq.Socket[bytes] | None = None
        self._unfinished: set[bytes] = set()

    def __enter__(self) -> Self:
        self._knock()
        self._context = zmq.Context()
        try:
            self._dealer = self._context.socket(zmq.DEALER)
            self._dealer.setsockopt(zmq.LINGER, LINGER_MS)
            self._dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing is kept for a daemon's successor
            self._dealer.setsockopt(zmq.MAXMSGSIZE, BODY_LIMIT_BYTES)
            self._dealer.connect(self._url)
            self._poller.register(self._dealer, zmq.POLLIN)
            self._send(_HELLO)
            _ = self._hear(None, at_once=True)  # only a Welcome is about no request
            # Only from now on: a handshake that fails is tried again.
            self._monitor = self._dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._poller.register(self._monitor, zmq.POLLIN)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise absence.no_socket(error) from error
        except BaseException:
            self._context.destroy(0)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what was left before its end, and disconnect. Idempotent."""
        context, self._context = self._context, None
        if context is not None:
            for id in self._unfinished:
                with contextlib.suppress(zmq.Again):  # nobody is there to mind
                    self._dealer.send_multipart(encode(Cancel(id=id)), zmq.DONTWAIT)
            self._dealer.disable_monitor()
            context.destroy()

    def status(self) -> SnapshotBody:
        """The daemon's whole state."""
        return self._ask(question.status())

    def metrics(self) -> MetricsBody:
        """All metrics of the daemon."""
        return self._ask(question.metrics())

    def spawn(
        self, model: str, on_event: OnEvent | None = None, *, group: str | None = None
    ) -> None:
        """Load ``model`` and return when it is ready; ``on_event`` gets the progress."""
        self._ask(question.spawn(model, group), on_event)

    def retire(self, model: str, *, now: bool = False) -> None:
        """Unload ``model`` and return when it is gone; ``now`` fails its running requests."""
        self._ask(question.retire(model, now=now))

    def pin(self, model: str, *, pinned: bool = True) -> None:
        """Keep ``model`` from being evicted or unloaded for being idle, or no longer."""
        self._ask(question.pin(model, pinned=pinned))

    def cache(self, model: str) -> CacheBody:
        """The state of a loaded model's prefix cache."""
        return self._ask(question.cache(model))

    def clear_cache(self, model: str) -> CacheBody:
        """Empty a loaded model's prefix cache, disk included; its state after that."""
        return self._ask(question.clear_cache(model))

    def reload(self, *, dry_run: bool = False, config: ConfigBody | None = None) -> ReloadBody:
        """Have the daemon read its configuration again; what (``dry_run``: would) change."""
        return self._ask(question.reload(config, dry_run=dry_run))

    def shutdown(self, *, now: bool = False, on_event: OnEvent | None = None) -> None:
        """Stop the daemon; return when it has said so or has closed the connection."""
        with contextlib.suppress(absence.ConnectionLost):
            self._ask(question.shutdown(now=now), on_event)

    def events(self, *, last: int | None = None, follow: bool = False) -> Iterator[EventBody]:
        """The ``last`` events of the daemon (None: all it keeps); ``follow``: and those to come."""
        return self._watch(question.events(last, follow=follow))

    def logs(self, model: str, *, lines: int = 100, follow: bool = False) -> Iterator[LogText]:
        """The last ``lines`` of the log of ``model``'s worker, in pieces that need not be lines;
        ``follow``: then what is written from then on.
        """
        return self._watch(question.logs(model, lines, follow=follow))

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

    def _ask(self, asked: Question[T], on_event: OnEvent | None = None) -> T:
        self._send(asked.frames)
        self._unfinished.add(asked.id)
        while True:
            message = self._hear(asked.id, at_once=asked.at_once)
            match message.header:
                case Accepted() | Event() as event:
                    if on_event is not None:
                        on_event(event)
                case header if isinstance(header, asked.answer):
                    self._unfinished.discard(asked.id)
                    return asked.read(message)
                case _:
                    raise absence.stranger(self._url)

    def _watch(self, feed: Feed[T]) -> Iterator[T]:
        window = ReceiveWindow()
        self._send(feed.frames)
        self._unfinished.add(feed.id)
        while not isinstance((message := self._hear(feed.id)).header, Done):
            if isinstance(message.header, Accepted):
                continue
            if not isinstance(message.header, Happened | LogPart) or not window.arrived():
                raise absence.stranger(self._url)
            item = feed.read(message)
            if item is not None:
                yield item
            if granted := window.consumed():
                self._send(encode(AddCredit(id=feed.id, chunks=granted)))
        self._unfinished.discard(feed.id)

    def _send(self, frames: list[bytes]) -> None:
        if not self._wait(self._timeout_s, zmq.POLLOUT):
            raise absence.mute(self._url)
        self._dealer.send_multipart(frames, zmq.DONTWAIT)

    def _hear(self, id: bytes | None, *, at_once: bool = False) -> Message:
        """The next message about ``id`` (None: that is about no request). Raises what it failed
        with. A daemon that is silent is asked whether it is there, unless its word is due anyway.
        """
        greeted = at_once
        heard_s = time.monotonic()
        while True:
            patience_s = self._timeout_s if greeted else self._timeout_s / 2
            if self._wait(heard_s + patience_s - time.monotonic(), zmq.POLLIN):
                message = self._read(self._dealer.recv_multipart(), id)
                if message is not None:
                    return message
                if not at_once:
                    greeted, heard_s = False, time.monotonic()
            elif greeted:
                raise absence.mute(self._url)
            else:
                self._send(_HELLO)
                greeted = True

    def _wait(self, patience_s: float, event: int) -> bool:
        """Wait until the socket is ready for ``event``; False if it was not in time.

        Raises ConnectionLost, but not before all that the daemon said has been read.
        """
        self._poller.modify(self._dealer, event)
        ready = dict(self._poller.poll(max(0, ceil(1e3 * patience_s))))
        if self._monitor in ready and (event == zmq.POLLOUT or self._dealer not in ready):
            raise absence.lost(self._url)
        return self._dealer in ready

    def _read(self, frames: list[bytes], id: bytes | None) -> Message | None:
        """A message about ``id``; None if it is about something else."""
        try:
            message = decode(frames, ToClient)
        except Stranger as error:
            raise absence.stranger(self._url) from error
        except Malformed as error:
            if error.request_id in (id, None):
                raise
            return None
        about: bytes | None = getattr(message.header, "id", None)
        if isinstance(message.header, Failed) and about in (id, None):
            self._unfinished.discard(id)
            raise message.header.error()
        return message if about == id else None
