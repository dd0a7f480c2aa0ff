"""One ROUTER socket: receives without waiting, sends through a bounded outbox per peer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import cast, final

import zmq
import zmq.backend

from ...protocol.codec import Kinds, Message, decode
from ...protocol.envelope import BODY_LIMIT_BYTES

SEND_MESSAGES = 100
"""Messages libzmq holds for one peer, whatever their size; more wait in its outbox."""

WORKER_BURST_MESSAGES = 1000
"""Messages libzmq holds from one worker: chunks of all its requests."""

CLIENT_BURST_MESSAGES = 16
"""Messages libzmq holds from one client: its bodies may be large. We read all the time, so that
only bursts wait there; what we have read is bounded in all by ``queued_bytes``.
"""

OUTBOX_MESSAGES = 4096
OUTBOX_BYTES = 16 * 2**20
"""More than this waiting for one peer means that it does not read; twice that is the end."""

OUTBOXES_BYTES = 128 * 2**20
"""All outboxes of a door together; when many peers do not read, each has its share of this."""

_FRAMES_LIMIT = 4
"""Parts kept of a message: one more than it may have, so that too many are still seen."""

# What pyzmq puts around each part of a message costs more than sending it: the calls below it.
_send = zmq.backend.Socket.send
_receive = zmq.backend.Socket.recv
_get = zmq.backend.Socket.get

# Plain numbers: an operation on the enums costs more than the question asked with them.
_READABLE = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)
_NO_WAIT = int(zmq.DONTWAIT)
_NO_WAIT_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_OPTIONS = {
    zmq.ROUTER_MANDATORY: 1,
    zmq.LINGER: 500,
    zmq.SNDHWM: SEND_MESSAGES,
    zmq.MAXMSGSIZE: BODY_LIMIT_BYTES,
    zmq.HANDSHAKE_IVL: 5000,
    # No heartbeats: libzmq aborts when one is due for a peer that hung up with its pipe full.
    # A local socket reports a dead peer by itself.
}


class Delivery(Enum):
    """What became of a message."""

    on_its_way = "on_its_way"
    peer_gone = "peer_gone"
    peer_slow = "peer_slow"
    dropped = "dropped"


@final
class Outbox:
    """What waits for one peer because its pipe is full."""

    def __init__(self) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.bytes = 0

    def holds(self, share: float, limit_bytes: float) -> bool:
        """Whether ``share`` of what may wait does: then this peer has stopped reading."""
        return len(self.messages) >= share * OUTBOX_MESSAGES or self.bytes >= share * limit_bytes

    def put(self, message: list[bytes]) -> None:
        """Add one message at the end."""
        self.messages.append(message)
        self.bytes += sum(map(len, message))

    def pop(self) -> None:
        """Drop the first message: it is sent."""
        self.bytes -= sum(map(len, self.messages.popleft()))


class Door(ABC):
    """A bound socket. One thread only; nothing here ever waits."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        kinds: Kinds,
        *,
        burst_messages: int = CLIENT_BURST_MESSAGES,
    ) -> None:
        self.name = name
        self.kinds = kinds
        self.counters: Counter[str] = Counter()
        self.may_have_message = True
        self._was_woken = False
        self._outboxes: dict[bytes, Outbox] = {}
        self._socket = context.socket(zmq.ROUTER)
        try:
            for option, value in _OPTIONS.items():
                self._socket.setsockopt(option, value)
            self._socket.setsockopt(zmq.RCVHWM, burst_messages)
            self._bind()
        except BaseException:
            self._socket.close()  # open, it would keep the context from ending
            raise

    @abstractmethod
    def _bind(self) -> None:
        """Set what this kind of door needs, and begin to listen."""

    @abstractmethod
    def let_in(self, *, new_peers: bool) -> None:
        """Let nobody new connect, or again; who is connected stays so, and nothing is lost."""

    def key_of(self, identity: bytes) -> str:
        """The public key a peer came with; empty where none are used."""
        return ""

    def decode(self, identity: bytes, frames: Sequence[bytes]) -> Message:
        """Read a message of a peer. Raises Stranger or Malformed."""
        return decode(frames, self.kinds)

    def fileno(self) -> int:
        """Readable when something may have arrived: then call :meth:`stir`."""
        return cast("int", self._socket.getsockopt(zmq.FD))

    def stir(self) -> None:
        """The descriptor says that something has arrived."""
        self.may_have_message = self._was_woken = True

    @property
    def is_behind(self) -> bool:
        """Whether any peer has messages waiting in its outbox."""
        return bool(self._outboxes)

    def receive(self, limit: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """At most ``limit`` messages that are there already: (routing id, frames)."""
        in_a_row = False
        for _ in range(limit):
            # Asking makes the descriptor wake us again; a send or a receive may swallow that. It
            # takes as long as receiving, so of messages in a row only the last one's end is asked.
            if not (in_a_row or self._was_woken):
                if not self._is_readable():
                    self.may_have_message = False
                    return
                in_a_row = True
            self._was_woken = False
            try:
                identity, *frames = self._receive_parts()
            except zmq.Again:
                in_a_row = False
                continue
            yield identity, frames

    def send(self, identity: bytes, frames: list[bytes]) -> Delivery:
        """Send one message to one peer, in order, now or as soon as it reads."""
        self.may_have_message = True
        outbox = self._outboxes.get(identity)
        message = [identity, *frames]
        if outbox is None:
            try:
                self._send_parts(message)
            except zmq.Again:
                outbox = self._outboxes[identity] = Outbox()
            except zmq.ZMQError as error:
                return self._failed(error)
            else:
                return Delivery.on_its_way
        limit_bytes = min(OUTBOX_BYTES, OUTBOXES_BYTES / len(self._outboxes))
        if not outbox.holds(1.0, limit_bytes):
            outbox.put(message)
            return Delivery.on_its_way
        if outbox.holds(2.0, limit_bytes):
            self.counters["undeliverable"] += 1
            return Delivery.dropped
        outbox.put(message)
        return Delivery.peer_slow

    def flush(self) -> list[bytes]:
        """Send what waits; returns the peers that turned out to be gone."""
        gone: list[bytes] = []
        self.may_have_message = True
        for identity, outbox in list(self._outboxes.items()):
            try:
                while outbox.messages:
                    self._send_parts(outbox.messages[0])
                    outbox.pop()
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                self._failed(error)
                gone.append(identity)
            del self._outboxes[identity]
        return gone

    def forget(self, identity: bytes) -> None:
        """Drop what waits for a peer that will not read any more."""
        self._outboxes.pop(identity, None)

    @abstractmethod
    def close(self) -> None:
        """Listen no more; what was sent may still leave for a moment."""

    def _receive_parts(self) -> list[bytes]:
        return self._parts_from(_receive(self._socket, _NO_WAIT, copy=False))

    def _parts_from(self, part: zmq.Frame) -> list[bytes]:
        # recv_multipart asks the socket after each part; the part itself knows, and is faster.
        parts = [part.bytes]
        while part.more:
            part = _receive(self._socket, _NO_WAIT, copy=False)
            if len(parts) <= _FRAMES_LIMIT:
                parts.append(part.bytes)
        return parts

    def _send_parts(self, parts: list[bytes]) -> None:
        # After the first part was taken, the others cannot be refused.
        for part in parts[:-1]:
            _send(self._socket, part, _NO_WAIT_MORE)
        _send(self._socket, parts[-1], _NO_WAIT)

    def _is_readable(self) -> bool:
        return bool(cast("int", _get(self._socket, _EVENTS)) & _READABLE)

    def _failed(self, error: zmq.ZMQError) -> Delivery:
        if error.errno != zmq.EHOSTUNREACH:
            raise error
        self.counters["unreachable"] += 1
        return Delivery.peer_gone
