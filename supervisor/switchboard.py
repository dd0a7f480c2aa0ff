"""Frames in, events to the core; effects out, frames and processes."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import final

from msgspec import structs

from ..protocol.codec import decode, encode
from ..protocol.errors import DflashError, ErrorCode, Malformed, Stranger
from ..protocol.messages import (
    Body,
    Failed,
    Header,
    Measured,
    ServiceStatus,
    Snapshot,
)
from .config_source import ConfigSource
from .core.effects import (
    AdoptConfig,
    Effect,
    InspectModel,
    Note,
    ReadConfig,
    SendMetrics,
    SendSnapshot,
    SendToClient,
    SendToWorker,
    SignalProcess,
    SpawnProcess,
    StartWatch,
    StopServing,
)
from .core.events import (
    ClientErred,
    ClientOverflowed,
    ClientSent,
    ClientVanished,
    Event,
    Peer,
    ProcessStarted,
    ProcessStartFailed,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from .core.machine import Core
from .doors.door import Door
from .inspection import inspector
from .logs.log import line, log
from .processes.workers import Processes
from .sockets import ClientDoor, Sockets
from .tcp.door import TcpDoor
from .watching.lookout import Lookout
from .worker_links import WorkerLinks, routing_id

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
        services: Callable[[], tuple[ServiceStatus, ...]] = tuple,
        problems: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._problems = problems
        self._services = services
        self._core = core
        self._sockets = sockets
        self._on_stop = on_stop
        self._processes = processes
        self._configs = configs
        processes.on_exit = self.worker_exited
        self._lookout = lookout
        lookout.send = self._send_to_client
        self._links = WorkerLinks(processes)
        self._events: deque[Event] = deque()
        self._handling = False
        self._counters: Counter[str] = Counter()
        self._busy_cpu_s = 0.0

    @property
    def is_behind(self) -> bool:
        """Whether some peer has yet to take what it was sent."""
        return self._sockets.are_behind

    @property
    def next_deadline(self) -> float:
        """When time alone changes something, on the monotonic clock."""
        return self._core.next_deadline()

    def turn(self) -> bool:
        """Take in what has arrived, act on it; True when there is more."""
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
        self._busy_cpu_s += time.thread_time() - began_s
        return more or self._sockets.may_have_message

    def flush(self) -> None:
        """Send what waits, and notice who is gone and what was logged."""
        self._lookout.look()
        for peer in self._sockets.flush_clients():
            self.give(ClientVanished(peer=peer))
        if self._sockets.workers.is_behind:
            for identity in self._sockets.workers.flush():
                self._unreachable(identity)

    def let_in(self, *, new_clients: bool) -> None:
        """Open or shut the clients' doors for connections that are not there yet."""
        log.warning(line("doors_opened" if new_clients else "doors_shut"))
        self._counters["doors_shut"] += not new_clients
        self._sockets.let_in(new_clients=new_clients)

    def open_door(self, door: TcpDoor) -> None:
        """Clients may come through a door on tcp, too."""
        self._sockets.open_tcp(door)

    def close_door(self, door: TcpDoor) -> None:
        """They may not any more."""
        self._sockets.close_tcp(door)

    def lose(self, door: TcpDoor, identities: list[bytes]) -> None:
        """Connections on tcp have ended."""
        for identity in identities:
            self.give(ClientVanished(peer=Peer("tcp", identity)))

    def note(self, name: str, fields: Mapping[str, str | float]) -> None:
        """Keep and tell an event of the shell."""
        self._lookout.note(name, fields)

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

    # --- in --------------------------------------------------------------------------------------

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

    # --- out -------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, ClientVanished | ClientOverflowed):
            self._lookout.lost(event)
        try:
            effects = self._core.handle(event, time.monotonic())
        except Exception:  # noqa: BLE001 (a mistake of ours must not take every model down)
            self._mistake(event)
            return
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # noqa: BLE001 (and not keep the other effects from happening)
                self._mistake(effect)

    def _watch(self) -> bool:
        try:
            return self._lookout.turn()
        except Exception:  # noqa: BLE001 (watching must not disturb those who work)
            self._mistake(self._lookout)
            return False

    def _mistake(self, cause: object) -> None:
        self._counters["internal_errors"] += 1
        log.exception(line("internal_error", cause=type(cause).__name__))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendToClient():
                self._send_to_client(effect.peer, effect.header, effect.body)
            case SendToWorker():
                self._send_to_worker(effect)
            case SendSnapshot() | SendMetrics():
                self._send_state(effect)
            case StartWatch():
                self._lookout.start(effect)
            case SpawnProcess() | SignalProcess():
                self._command(effect)
            case InspectModel():
                inspector.look(effect, self.give)
            case ReadConfig() | AdoptConfig():
                self._configure(effect)
            case Note():
                self._lookout.note(effect.name, effect.fields)
            case StopServing():
                self._lookout.end()
                self._on_stop()

    def _send_state(self, effect: SendSnapshot | SendMetrics) -> None:
        if isinstance(effect, SendSnapshot):
            counters = {**effect.snapshot.counters, **self._own_counters()}
            body = structs.replace(
                effect.snapshot,
                counters=counters,
                services=self._services(),
                problems=self._problems(),
            )
            self._send_frames(effect.peer, encode(Snapshot(id=effect.id), body))
            return
        doors = {door.name: door.counters for door in self._sockets}
        errors = self._counters["internal_errors"]
        measured = self._lookout.measured(effect.metrics, doors, errors, self._busy_cpu_s)
        self._send_frames(effect.peer, encode(Measured(id=effect.id), measured))

    def _configure(self, effect: ReadConfig | AdoptConfig) -> None:
        if isinstance(effect, ReadConfig):
            self._configs.read(effect, self.give)
        else:
            self._configs.adopt(effect.config)
            self._processes.serve_models(self._configs.current.models)

    def _send_to_client(self, peer: Peer, header: Header, body: bytes | Body = b"") -> None:
        self._send_frames(peer, encode(header, body))

    def _send_frames(self, peer: Peer, frames: list[bytes]) -> None:
        shown = self._sockets.send_to_client(peer, frames)
        if shown is not None:
            self._events.append(shown)

    def _send_to_worker(self, effect: SendToWorker) -> None:
        identity = routing_id(effect.worker, effect.epoch)
        if not self._sockets.send_to_worker(identity, encode(effect.header, effect.body)):
            self._unreachable(identity)

    def _unreachable(self, identity: bytes) -> None:
        link = self._links.get(identity)
        if link is not None:
            self.give(WorkerUnreachable(worker=link.worker, epoch=link.epoch))

    def _spawn(self, effect: SpawnProcess) -> None:
        worker, epoch = effect.worker, effect.epoch
        try:
            pid = self._processes.start(worker, epoch, cpu_share=effect.cpu_share)
        except (OSError, DflashError) as error:
            event = ProcessStartFailed(worker=worker, epoch=epoch, reason=str(error))
            self._events.append(event)
        else:
            self._events.append(ProcessStarted(worker=worker, epoch=epoch, pid=pid))

    def _command(self, effect: SpawnProcess | SignalProcess) -> None:
        if isinstance(effect, SpawnProcess):
            self._spawn(effect)
        else:
            self._signal(effect)

    def _signal(self, effect: SignalProcess) -> None:
        if not self._processes.signal(effect.worker, effect.epoch, effect.signal):
            event = WorkerExited(worker=effect.worker, epoch=effect.epoch, status=-9)
            self._events.append(event)

    def _own_counters(self) -> dict[str, float]:
        return {
            **self._counters,
            **self._sockets.counters(),
            **self._lookout.counters(),
            "busy_cpu_s": self._busy_cpu_s,
        }
