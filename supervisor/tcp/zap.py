"""Who is let in: our own answers to libzmq's questions (ZAP, RFC 27), on the daemon's loop.

pyzmq's authenticator runs on a thread that dies of an exception, after which every handshake hangs
unseen. Here an answer is a pure function, a mistake in it is a refusal, and the canary sees
whether answers come.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from typing import cast, final

import zmq
from zmq.utils import z85

from ..logs.log import line, log

ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"tcp"
_VERSION = b"1.0"

ANSWER_DELAY_S = 0.005
"""libzmq reads a client's own routing id right after it has asked us, and ours only then counts if
it comes later. Should it come earlier all the same, the door sees that and cuts the connection; an
honest client connects anew.
"""

BATCH = 64

IDENTITY_BYTES = 16
"""Of the routing id that we give to a connection: nobody can guess another's."""


@final
class ZapResponder:
    """Answers until closed. ``admits`` says whether a public key (z85) may come in now."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], admits: Callable[[str], bool]
    ) -> None:
        self.refused = 0
        self.mistakes = 0
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ENDPOINT)
        self._fd = cast("int", self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self.turn)

    def turn(self) -> None:
        """Answer what has been asked. The clock calls it too: a wake-up is never waited for."""
        if self._socket.closed:
            return
        for _ in range(BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            _ = self._loop.call_later(ANSWER_DELAY_S, self._answer, frames)
        _ = self._loop.call_soon(self.turn)

    def close(self) -> None:
        """Answer nobody any more. Idempotent."""
        if not self._socket.closed:
            _ = self._loop.remove_reader(self._fd)
            self._socket.close()

    def _answer(self, frames: list[bytes]) -> None:
        if self._socket.closed:
            return
        try:
            reply = answer(frames, self._admits, secrets.token_bytes(IDENTITY_BYTES))
        except Exception:  # noqa: BLE001 (no mistake of ours may end the answering)
            self.mistakes += 1
            log.exception(line("tcp_answer_failed"))
            reply = [*frames[:2], _VERSION, *frames[3:4], b"500", b"", b"", b""]
        self.refused += b"400" in reply[4:5]
        try:
            self._socket.send_multipart(reply, zmq.DONTWAIT)
        except zmq.ZMQError as error:  # who asked is gone
            log.warning(line("tcp_answer_lost", reason=error))
        self.turn()


def answer(frames: list[bytes], admits: Callable[[str], bool], identity: bytes) -> list[bytes]:
    """The reply to one question; a connection that is let in is called ``identity``."""
    peer, empty, version, number, domain, _address, _own_identity, mechanism, *credentials = frames
    head = [peer, empty, _VERSION, number]
    refusal = [*head, b"400", b"this key is not allowed", b"", b""]
    if version != _VERSION or domain != DOMAIN or mechanism != b"CURVE":
        return refusal
    if len(credentials) != 1 or len(credentials[0]) != 32:
        return refusal
    public = z85.encode(credentials[0]).decode()
    if not admits(public):
        return refusal
    return [*head, b"200", b"", user_id(public, identity), _property(b"Identity", identity)]


def user_id(public: str, identity: bytes) -> bytes:
    """What libzmq attaches to every message of a connection, whatever its client claims to be."""
    return f"{public} {identity.hex()}".encode()


def read_user_id(text: str, identity: bytes) -> str | None:
    """Whose public key a message is of; None if its connection is not called what we called it."""
    public, _, name = text.partition(" ")
    return public if name == identity.hex() else None


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
