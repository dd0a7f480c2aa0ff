"""One DEALER socket to one endpoint of the daemon, driven by the running asyncio loop.

Plain non-blocking calls on the socket, woken by its file descriptor: nothing is awaited on
the socket itself, so no cancellation can lose a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import final

import zmq
from zmq.utils.monitor import parse_monitor_message

from .envelope import BODY_LIMIT_BYTES
from .key_file import KeyFile

LINGER_MS = 250
"""How long closing may take to hand a last cancel to a daemon that reads slowly."""

_HIGH_WATER_MESSAGES = 4096
_BATCH_MESSAGES = 100
_OPTIONS = {
    zmq.LINGER: LINGER_MS,
    zmq.IMMEDIATE: 1,
    zmq.SNDHWM: _HIGH_WATER_MESSAGES,
    zmq.RCVHWM: _HIGH_WATER_MESSAGES,
    zmq.MAXMSGSIZE: BODY_LIMIT_BYTES,
    # No heartbeats: libzmq aborts when one is due for a peer that hung up with its pipe full.
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 200,
}
_HANDSHAKE_BROKEN = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | _HANDSHAKE_BROKEN
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)
_KEEPALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
}
"""A machine that vanished without a word is noticed within two minutes."""


@final
class Link:
    """A connection that comes and goes with the daemon. All methods: the loop's thread only.

    ``on_message`` gets frames, ``on_up`` and ``on_down`` follow the connection; everything
    the daemon sent before it went is delivered before ``on_down``.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        *,
        key: KeyFile | None = None,
        on_message: Callable[[list[bytes]], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.up = False
        self.refused = False
        """Whether the last attempt to connect found nobody."""
        self.reached = False
        """Whether somebody listens who has not proven to be a daemon yet, or is one that hangs."""
        self.unauthorised = False
        """Whether it found a daemon that does not know our key; that is final."""
        self.broken = False
        """Whether it found somebody who broke off before both sides had proven who they are."""
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._outbox: deque[list[bytes]] = deque()
        self._loop = asyncio.get_running_loop()
        self._pump_is_due = False
        self._delivering = False
        self._changed = asyncio.Event()
        self._socket = context.socket(zmq.DEALER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        if url.startswith("tcp:"):
            self._socket.setsockopt(zmq.IPV6, 1)
            for option, value in _KEEPALIVE.items():
                self._socket.setsockopt(option, value)
        if key is not None:
            self._socket.curve_serverkey = key.server.encode()
            self._socket.curve_publickey = key.public.encode()
            self._socket.curve_secretkey = key.secret.encode()
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        self._socket.connect(url)  # before anybody reads: it may refuse the address
        for socket in (self._socket, self._monitor):
            self._loop.add_reader(socket.FD, self._pump)
        self._schedule_pump()

    async def change(self) -> None:
        """Wait until ``up`` or ``refused`` may have changed, or it is closed."""
        self._changed.clear()
        await self._changed.wait()

    def send(self, frames: list[bytes]) -> None:
        """Send now, or as soon as the daemon is there and reads; in order."""
        self._outbox.append(frames)
        if not self._delivering:  # else out of order: a disconnect would deliver what follows
            self._pump_monitor()
        self._flush()
        self._schedule_pump()

    def withdraw(self, frames: list[bytes]) -> None:
        """Forget ``frames`` (this very list) if they are not sent yet."""
        self._outbox = deque(waiting for waiting in self._outbox if waiting is not frames)

    def close(self) -> None:
        """Close at once; what was sent may still leave within the linger time. Idempotent."""
        if self._socket.closed:
            return
        for socket in (self._socket, self._monitor):
            self._loop.remove_reader(socket.FD)
        self.up = False
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._changed.set()

    def _schedule_pump(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        self._pump_monitor()
        self._flush()
        # Last, since sending may swallow the wake-up of a message that arrives meanwhile.
        if self._deliver(_BATCH_MESSAGES):
            self._schedule_pump()

    def _deliver(self, limit: int | None = None) -> bool:
        """Hand on waiting messages; True when ``limit`` left some."""
        self._delivering = True
        delivered = 0
        try:
            while not self._socket.closed and delivered != limit:
                self._on_message(self._socket.recv_multipart(zmq.DONTWAIT))
                delivered += 1
        except zmq.Again:
            return False
        finally:
            self._delivering = False
        return not self._socket.closed

    def _flush(self) -> None:
        # Reading EVENTS makes libzmq notice a new connection; a bare send may not.
        while self._outbox and not self._socket.closed:
            if not int(self._socket.EVENTS) & zmq.POLLOUT:
                return
            try:
                self._socket.send_multipart(self._outbox[0], zmq.DONTWAIT)
            except zmq.Again:
                return
            self._outbox.popleft()

    def _pump_monitor(self) -> None:
        while not self._socket.closed:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.DONTWAIT))["event"]
            except zmq.Again:
                return
            self._follow(event)
            self._changed.set()

    def _follow(self, event: int) -> None:
        self.refused = event == zmq.EVENT_CONNECT_RETRIED
        self.reached = event in (zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.broken = bool(event & _HANDSHAKE_BROKEN) or (
            self.broken and event != zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self.unauthorised = self.unauthorised or event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.up = True
            self._on_up()
        elif event == zmq.EVENT_DISCONNECTED and self.up:
            self.up = False
            self._outbox.clear()
            self._deliver()
            self._on_down()
