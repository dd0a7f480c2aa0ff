"""Frames in, events to the core, its effects to whoever performs them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import final

from ..protocol.codec import decode, encode
from ..protocol.errors import ErrorCode, Malformed, Stranger
from ..protocol.messages import Body, Failed, Header, ServiceStatus
from .config_source import ConfigSource
from .core.events import (
    ClientErred,
    ClientOverflowed,
    ClientSent,
    ClientVanished,
    Event,
    Peer,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from .core.machine import Core
from .doors.door import Door
from .logs.log import line, log
from .performer import Performer
from .processes.workers import Processes
from .shell_figures import ShellFigures
from .sockets import ClientDoor, Sockets
from .tcp.door import TcpDoor
from .watching.lookout import Lookout
from .worker_links import WorkerLinks

BATCH_MESSAGES = 64
"""Taken from one socket before the others have their turn."""

BATCH_BYTES = 4 * 2**20
"""The same in bytes, of which the last message may take more."""

LAST_WORDS_MESSAGES = 100_000
"""Taken from the workers' socket before an exit is believed."""


@final
class Switchboard:
    """The one owner of the core. Everything happens in :meth:`turn` and :meth:`give`."""

    def __init__(
        self,
        core: Core,
        sockets: Sockets,
        processes: Processes,
        *,
        configs: ConfigSource,
        lookout: Lookout,
        on_stop: Callable[[], None],
        services: Callable[[], tuple[ServiceStatus, ...]],
        problems: Callable[[], tuple[str, ...]],
    ) -> None:
        self._core = core
        self._sockets = sockets
        self._lookout = lookout
        self._links = WorkerLinks(processes)
        self._figures = ShellFigures(sockets, lookout, services=services, problems=problems)
        self._performer = Performer(
            sockets,
            processes,
            configs=configs,
            lookout=lookout,
            figures=self._figures,
            deliver=self.give,
            on_stop=on_stop,
        )
        processes.on_exit = self.worker_exited
        lookout.send = self._send
        self._events: deque[Event] = deque()
        self._handling = False
        self._turn_is_due = False

    @property
    def is_behind(self) -> bool:
        """Whether some peer has yet to take what it was sent."""
        return self._sockets.are_behind

    @property
    def next_deadline(self) -> float:
        """When time alone changes something, on the monotonic clock."""
        return self._core.next_deadline()

    def wake(self, door: Door) -> None:
        """Something may have arrived at a door."""
        door.stir()
        if door.is_behind:  # what woke us may be that a peer reads again
            self.flush()
        self.turn()

    def turn(self) -> None:
        """Take in what has arrived, and act on it; what is more has its turn after others."""
        if not self._turn_is_due and self._take_in():
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def flush(self) -> None:
        """Send what waits, and notice who is gone and what was logged."""
        self._lookout.look()
        for peer in self._sockets.flush_clients():
            self.give(ClientVanished(peer=peer))
        if self._sockets.workers.is_behind:
            for identity in self._sockets.workers.flush():
                link = self._links.get(identity)
                if link is not None:
                    self.give(WorkerUnreachable(worker=link.worker, epoch=link.epoch))

    def let_in(self, *, new_clients: bool) -> None:
        """Open or shut the clients' doors for connections that are not there yet."""
        log.warning(line("doors_opened" if new_clients else "doors_shut"))
        self._figures.counters["doors_shut"] += not new_clients
        self._sockets.let_in(new_clients=new_clients)

    def open_door(self, door: TcpDoor) -> None:
        """Clients may come through a door on tcp, too."""
        self._sockets.open_tcp(door)

    def close_door(self, door: TcpDoor) -> None:
        """They may not any more."""
        self._sockets.close_tcp(door)

    def lose(self, identities: list[bytes]) -> None:
        """Connections on tcp have ended."""
        for identity in identities:
            self.give(ClientVanished(peer=Peer("tcp", identity)))

    def note(self, name: str, fields: Mapping[str, str | float]) -> None:
        """Keep and tell an event of the shell."""
        self._lookout.note(name, fields)

    def mistake(self, cause: object) -> None:
        """Log and count an exception that is being handled: one of ours, which ends nothing."""
        self._figures.counters["internal_errors"] += 1
        name = getattr(cause, "__qualname__", type(cause).__name__)
        log.exception(line("internal_error", cause=name))

    def give(self, event: Event) -> None:
        """Hand an event to the core and obey; what that brings about is handled in turn."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def worker_exited(self, worker: str, epoch: int, status: int, log_tail: str) -> None:
        """A process is reaped; what it said before it ended counts."""
        for identity, frames in self._sockets.workers.receive(LAST_WORDS_MESSAGES):
            self._from_worker(identity, frames)
        self._sockets.workers.forget(self._links.end(worker, epoch))
        self.give(WorkerExited(worker=worker, epoch=epoch, status=status, log_tail=log_tail))

    def _next_turn(self) -> None:
        self._turn_is_due = False
        self.turn()

    def _take_in(self) -> bool:
        """What has arrived, as far as one batch goes; True when there is more."""
        began_s = time.thread_time()
        workers = self._sockets.workers
        if workers.may_have_message:
            for identity, frames in workers.receive(BATCH_MESSAGES):
                self._from_worker(identity, frames)
        for name, door in self._sockets.clients.items():
            if door.may_have_message:
                taken_bytes = 0
                for identity, frames in door.receive(BATCH_MESSAGES):
                    self._from_client(name, door, identity, frames)
                    taken_bytes += sum(map(len, frames))
                    if taken_bytes >= BATCH_BYTES:
                        break
        more = self._watch()
        self._figures.busy_cpu_s += time.thread_time() - began_s
        return more or self._sockets.may_have_message

    def _from_client(
        self, name: ClientDoor, door: Door, identity: bytes, frames: list[bytes]
    ) -> None:
        peer = Peer(name, identity)
        try:
            message = door.decode(identity, frames)
        except Stranger:
            door.counters["strangers"] += 1
        except Malformed as error:
            door.counters["malformed"] += 1
            self.give(
                ClientErred(peer=peer, code=error.code, message=error.message, id=error.request_id)
            )
        else:
            if not self._lookout.takes(peer, message.header):
                header, body, key = message.header, message.body, door.key_of(identity)
                self.give(ClientSent(peer=peer, header=header, body=body, key=key))

    def _from_worker(self, identity: bytes, frames: list[bytes]) -> None:
        door = self._sockets.workers
        try:
            message = decode(frames, door.kinds)
        except Stranger:
            door.counters["strangers"] += 1
            return
        except Malformed as error:
            door.counters["malformed"] += 1
            log.warning(line("worker_malformed", identity=identity, reason=error.message))
            refused = Failed(id=error.request_id, code=error.code, message=error.message)
            door.send(identity, encode(refused))
            return
        link = self._links.get(identity) or self._links.admit(identity, message.header)
        if link is None:
            door.counters["unauthorised"] += 1
            refused = Failed(code=ErrorCode.unauthorised, message="this is no worker of ours")
            door.send(identity, encode(refused))
            return
        header, body = message.header, message.body
        self.give(WorkerSent(worker=link.worker, epoch=link.epoch, header=header, body=body))

    def _handle(self, event: Event) -> None:
        if isinstance(event, ClientVanished | ClientOverflowed):
            self._lookout.lost(event)
        try:
            effects = self._core.handle(event, time.monotonic())
        except Exception:  # noqa: BLE001 (a mistake of ours must not take every model down)
            self.mistake(event)
            return
        for effect in effects:
            try:
                self._came(self._performer.perform(effect))
            except Exception:  # noqa: BLE001 (and not keep the other effects from happening)
                self.mistake(effect)

    def _came(self, event: Event | None) -> None:
        if event is not None:
            self._events.append(event)

    def _send(self, peer: Peer, header: Header, body: bytes | Body) -> None:
        """Send what a watcher is told; what that shows is handled with the next event."""
        self._came(self._performer.send(peer, header, body))

    def _watch(self) -> bool:
        try:
            return self._lookout.turn()
        except Exception:  # noqa: BLE001 (watching must not disturb those who work)
            self.mistake(self._lookout)
            return False
