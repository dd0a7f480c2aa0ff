"""The I/O thread: the worker's end of the workers socket. It never computes.

The main thread runs it, so that signals are handled at once, whatever the engine is doing.
"""

from __future__ import annotations

import math
import os
import time
from typing import final

import zmq

from ...protocol.codec import Message, decode, encode
from ...protocol.envelope import BODY_LIMIT_BYTES, HEADER_LIMIT_BYTES
from ...protocol.errors import DflashError
from ...protocol.messages import (
    AddCredit,
    Cancel,
    ClearCache,
    Ping,
    Pong,
    ReadCache,
    Register,
    Registered,
    Stop,
    ToWorker,
)
from ..log import line, log
from ..loop.thread import EngineThread
from .environment import Environment
from .outbox import Outbox

REGISTER_S = 20.0
"""How long the supervisor's socket may be absent at the start."""

STOP_S = 2.0
"""After a stop: how long the engine may finish its step before the process leaves without it."""

LINGER_MS = 500
"""How long the last messages may take to reach the supervisor."""

_RECEIVE_AT_ONCE = 64
_LOGGED_REFUSALS = 20


@final
class Link:
    """Registers, answers pings, and carries messages between supervisor and engine thread."""

    def __init__(self, environment: Environment, outbox: Outbox, engine: EngineThread) -> None:
        self._environment = environment
        self._outbox = outbox
        self._engine = engine
        self._stop_by_s: float | None = None
        self._stop_asked = False
        self._refused = 0
        self._context = zmq.Context()
        self._socket = _connected(self._context, environment)
        self._poller = zmq.Poller()
        self._poller.register(outbox.fileno(), zmq.POLLIN)

    def ask_to_stop(self) -> None:
        """Leave in an orderly way; safe in a signal handler."""
        self._stop_asked = True
        self._outbox.wake()

    def run(self) -> bool:
        """Serve until stopped or broken. False: the supervisor could not be reached at all."""
        try:
            if not self._register():
                return False
            if self._stop_asked:
                return True
            self._engine.start()
            while not self._over():
                self._turn()
            return True
        finally:
            self._socket.close()
            self._context.term()

    def _register(self) -> bool:
        """Send Register once the supervisor is there, whatever else waits."""
        register = Register(
            worker=self._environment.worker,
            epoch=self._environment.epoch,
            pid=os.getpid(),
            secret=self._environment.secret,
        )
        self._outbox.put(encode(register))
        until_s = time.monotonic() + REGISTER_S
        while len(self._outbox) and not self._stop_asked:
            if time.monotonic() > until_s:
                log.error(line("supervisor_unreachable", endpoint=self._environment.endpoint))
                return False
            self._wait(until_s)
            self._send()
        return True

    def _turn(self) -> None:
        self._wait(self._stop_by_s)
        if self._stop_asked and self._stop_by_s is None:
            self._stop(Stop(epoch=self._environment.epoch))
        self._receive()
        self._send()

    def _wait(self, until_s: float | None) -> None:
        """Block until a message came, one can be sent, the outbox was filled, or ``until_s``."""
        events = zmq.POLLIN | zmq.POLLOUT if len(self._outbox) else zmq.POLLIN
        self._poller.register(self._socket, events)
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        self._poller.poll(None if left_s is None else math.ceil(left_s * 1000))
        self._outbox.quiet()

    def _over(self) -> bool:
        """Whether the engine has ended and all it said is sent, or that took too long."""
        if self._engine.ended:
            if not len(self._outbox):
                return True
            self._stop_by_s = self._stop_by_s or time.monotonic() + STOP_S
        if self._stop_by_s is None or time.monotonic() < self._stop_by_s:
            return False
        log.warning(line("left_unfinished", engine_ended=self._engine.ended))
        return True

    def _send(self) -> None:
        while (frames := self._outbox.first()) is not None:
            if not self._try_send(frames):
                return
            self._outbox.sent()

    def _try_send(self, frames: list[bytes]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def _receive(self) -> None:
        for _ in range(_RECEIVE_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self._accept(decode(frames, ToWorker))
            except DflashError as error:
                self._refuse(str(error.code), error.message)

    def _accept(self, message: Message) -> None:
        header = message.header
        match header:
            case AddCredit() | Cancel() | ReadCache() | ClearCache():
                self._engine.put(message)
            case _ if getattr(header, "epoch", None) != self._environment.epoch:
                self._refuse("stale_epoch", f"{type(header).__name__} is of another epoch")
            case Registered():
                log.info(line("registered"))
            case Ping():
                self._pong(header)
            case Stop():
                self._stop(header)
            case _:
                self._engine.put(message)

    def _pong(self, ping: Ping) -> None:
        pulse = self._engine.pulse
        pong = Pong(
            epoch=self._environment.epoch,
            n=ping.n,
            steps=pulse.steps,
            active=pulse.active,
            memory_bytes=pulse.memory_bytes,
        )
        # Ahead of what waits; if there is no room the next ping will find some.
        self._try_send(encode(pong))

    def _stop(self, stop: Stop) -> None:
        if self._stop_by_s is None:
            log.info(line("stopping"))
            self._stop_by_s = time.monotonic() + STOP_S
            self._engine.put(Message(stop, b""))

    def _refuse(self, reason: str, sentence: str) -> None:
        self._refused += 1
        if self._refused <= _LOGGED_REFUSALS:
            log.warning(line("message_refused", reason=reason, detail=sentence))


def _connected(
    context: zmq.Context[zmq.Socket[bytes]], environment: Environment
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, environment.routing_id)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, HEADER_LIMIT_BYTES + BODY_LIMIT_BYTES)
    socket.connect(environment.endpoint)
    return socket
