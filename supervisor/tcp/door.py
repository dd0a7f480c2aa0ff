"""The ROUTER on tcp: what arrives is known to come from an allowed key, or is not read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import cast, final, get_args

import zmq
from zmq.utils.monitor import parse_monitor_message

from ...protocol.codec import Message, decode
from ...protocol.errors import ErrorCode, Malformed
from ...protocol.messages import FromClient, FromControl
from ..config.tcp_section import TcpSection
from ..doors.door import CLIENT_BURST_MESSAGES, Door
from ..keys.client_keys import Role
from ..keys.server_key import ServerKey
from .connection import Connection, ends_of, shut
from .zap import DOMAIN, read_user_id

RoleOf = Callable[[str], Role | None]
"""The role of a public key; None if it may not be here."""

_ALL = FromClient | FromControl
_REQUESTS = get_args(FromClient)
_OPTIONS = {
    zmq.IPV6: 1,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
    zmq.BACKLOG: 64,
}
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_MONITOR_BATCH = 1000
_NOBODY = ""
"""In place of a public key where none are used."""


@final
class TcpDoor(Door):
    """``role_of`` is asked anew for each connection's first message and whenever keys change.

    ``key`` None: the loopback without keys, where everybody has the role of ``_NOBODY``'s answer.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        section: TcpSection,
        key: ServerKey | None,
        role_of: RoleOf,
    ) -> None:
        self._section = section
        self._key = key
        self._role_of = role_of
        self._peers: dict[bytes, Connection] = {}
        self._accepted: set[int] = set()
        self._limit = section.connections
        self._monitor: zmq.Socket[bytes] | None = None
        super().__init__(context, "tcp", _ALL, burst_messages=CLIENT_BURST_MESSAGES)

    def _bind(self) -> None:
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, self._section.message_bytes)
        if self._key is not None:
            self._socket.curve_server = True
            self._socket.curve_publickey = self._key.public.encode()
            self._socket.curve_secretkey = self._key.secret.encode()
            self._socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        try:
            for url in self._section.listen:
                self._socket.bind(url)
        except zmq.ZMQError:
            self._close_monitor()
            raise

    @property
    def connections(self) -> int:
        """How many are open, strangers' included."""
        return len(self._accepted)

    @property
    def is_full(self) -> bool:
        """Whether nobody new gets in, whatever key it has."""
        return len(self._accepted) >= self._limit

    def let_in(self, *, new_peers: bool) -> None:
        """Let nobody new connect, or again."""
        self._limit = self._section.connections if new_peers else 0

    def key_of(self, identity: bytes) -> str:
        """The public key a peer came with; empty where none are used."""
        peer = self._peers.get(identity)
        return _NOBODY if peer is None else peer.public

    def decode(self, identity: bytes, frames: Sequence[bytes]) -> Message:
        """Read a message of a peer, who may ask what its role allows."""
        message = decode(frames, self.kinds)
        if isinstance(message.header, _REQUESTS):
            return message
        peer = self._peers.get(identity)
        if peer is not None and self._role_of(peer.public) == "control":
            return message
        self.counters["unauthorised"] += 1
        asked: bytes | None = getattr(message.header, "id", None)
        sentence = "this key is for generations only: it may not look at the daemon or control it"
        raise Malformed(ErrorCode.unauthorised, sentence, asked)

    def watch(self) -> None:
        """Count who is connected; who is too many is cut off, before anything is read of them."""
        monitor = self._monitor
        if monitor is None:
            return
        for _ in range(_MONITOR_BATCH):
            try:
                found = parse_monitor_message(monitor.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return
            fd = found["value"]
            if found["event"] != zmq.EVENT_ACCEPTED:
                self._accepted.discard(fd)
                continue
            self._accepted.add(fd)
            if len(self._accepted) > self._limit:
                self.counters["turned_away"] += 1
                shut(fd)

    def monitor_fileno(self) -> int:
        """Readable when :meth:`watch` has something to see."""
        return -1 if self._monitor is None else cast("int", self._monitor.getsockopt(zmq.FD))

    def gone(self) -> list[bytes]:
        """Forget the peers whose connections have ended."""
        return self._forget(lambda peer: not peer.is_there)

    def expel(self) -> list[bytes]:
        """Cut the connections of keys that are not allowed any more."""
        return self._forget(lambda peer: self._role_of(peer.public) is None)

    def expel_all(self) -> list[bytes]:
        """Cut all connections."""
        return self._forget(lambda _peer: True)

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._close_monitor()
        self._outboxes.clear()
        self._socket.close()

    def _receive_parts(self) -> list[bytes]:
        first = self._socket.recv(zmq.DONTWAIT, copy=False)
        parts = self._parts_from(first)
        if parts[0] not in self._peers and not self._knows(first, parts[0]):
            raise zmq.Again  # as if it had not come
        return parts

    def _knows(self, frame: zmq.Frame, identity: bytes) -> bool:
        """Whether a connection that speaks for the first time may; else it is cut."""
        fd = frame.get(zmq.SRCFD)
        public = self._public_of(frame, identity)
        if public is None or self._role_of(public) is None:
            self.counters["cut"] += 1
            shut(fd)
            return False
        self._peers[identity] = Connection(public=public, fd=fd, ends=ends_of(fd))
        return True

    def _public_of(self, frame: zmq.Frame, identity: bytes) -> str | None:
        if self._key is None:
            # libzmq's own names only: five bytes, the first of them zero. A client that chose
            # one could be there first, or next, where another's answers go.
            return _NOBODY if len(identity) == 5 and not identity[0] else None
        try:
            return read_user_id(cast("str", frame.get("User-Id")), identity)
        except zmq.ZMQError:
            return None

    def _forget(self, chosen: Callable[[Connection], bool]) -> list[bytes]:
        found = {identity: peer for identity, peer in self._peers.items() if chosen(peer)}
        for identity, peer in found.items():
            peer.cut()
            del self._peers[identity]
            self.forget(identity)
        return list(found)

    def _close_monitor(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            monitor.close(linger=0)
