"""Frames in, events to the core; effects out, frames and processes."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Literal, final

from msgspec import structs

from ..protocol.codec import decode, encode
from ..protocol.errors import DflashError, ErrorCode, Malformed, Stranger
from ..protocol.messages import (
    Body,
    Failed,
    Header,
    Measured,
    Register,
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
    ModelInspected,
    Peer,
    ProcessStarted,
    ProcessStartFailed,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from .core.facts import ModelFacts
from .core.machine import Core
from .doors.door import Delivery, Door
from .inspection.inspector import Inspector
from .logs.log import line, log
from .processes.workers import Processes
from .tcp.door import TcpDoor
from .watching.lookout import Lookout

BATCH_MESSAGES = 64
"""Taken from one socket before the others have their turn."""

BATCH_BYTES = 4 * 2**20
"""The same in bytes, of which the last message may take more."""

LAST_WORDS_MESSAGES = 100_000
"""Taken from the workers' socket before an exit is believed."""

ClientDoor = Literal["requests", "control", "tcp"]


@final
class Switchboard:
    """The one owner of the core. Everything happens in :meth:`turn` and :meth:`give`."""

    def __init__(
        self,
        core: Core,
        client_doors: dict[ClientDoor, Door],
        worker_door: Door,
        processes: Processes,
        *,
        inspector: Inspector,
        configs: ConfigSource,
        lookout: Lookout,
        on_stop: Callable[[], None],
        services: Callable[[], tuple[ServiceStatus, ...]] = tuple,
        problems: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._problems = problems
        self._services = services
        self._core = core
        self._client_doors = client_doors
        self._worker_door = worker_door
        self._on_stop = on_stop
        self._processes = processes
        self._configs = configs
        processes.on_exit = self.worker_exited
        self._inspector = inspector
        inspector.on_facts = self.model_inspected
        self._lookout = lookout
        lookout.send = self._send_to_client
        self._links: dict[bytes, tuple[str, int]] = {}
        self._events: deque[Event] = deque()
        self._handling = False
        self._counters: Counter[str] = Counter()
        self._busy_cpu_s = 0.0

    @property
    def doors(self) -> tuple[Door, ...]:
        """All sockets."""
        return (*self._client_doors.values(), self._worker_door)

    @property
    def is_behind(self) -> bool:
        """Whether some peer has yet to take what it was sent."""
        return any(door.is_behind for door in self.doors)

    @property
    def next_deadline(self) -> float:
        """When time alone changes something, on the monotonic clock."""
        return self._core.next_deadline()

    def turn(self) -> bool:
        """Take in what has arrived, act on it; True when there is more."""
        began_s = time.thread_time()
        if self._worker_door.may_have_message:
            for identity, frames in self._worker_door.receive(BATCH_MESSAGES):
                self._from_worker(identity, frames)
        for name, door in self._client_doors.items():
            if door.may_have_message:
                taken_bytes = 0
                for identity, frames in door.receive(BATCH_MESSAGES):
                    self._from_client(name, door, identity, frames)
                    taken_bytes += sum(map(len, frames))
                    if taken_bytes >= BATCH_BYTES:
                        break
        more = self._watch()
        self._busy_cpu_s += time.thread_time() - began_s
        return more or any(door.may_have_message for door in self.doors)

    def flush(self) -> None:
        """Send what waits, and notice who is gone and what was logged."""
        self._lookout.look()
        for name, door in self._client_doors.items():
            if door.is_behind:
                for identity in door.flush():
                    self.give(ClientVanished(peer=Peer(name, identity)))
        if self._worker_door.is_behind:
            for identity in self._worker_door.flush():
                self._unreachable(identity)

    def let_in(self, *, new_clients: bool) -> None:
        """Open or shut the clients' doors for connections that are not there yet."""
        log.warning(line("doors_opened" if new_clients else "doors_shut"))
        self._counters["doors_shut"] += not new_clients
        for door in self._client_doors.values():
            door.let_in(new_peers=new_clients)

    def open_door(self, door: TcpDoor) -> None:
        """Clients may come through a door on tcp, too."""
        self._client_doors["tcp"] = door

    def close_door(self, door: TcpDoor) -> None:
        """They may not any more."""
        if self._client_doors.get("tcp") is door:
            del self._client_doors["tcp"]

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
        for identity, frames in self._worker_door.receive(LAST_WORDS_MESSAGES):
            self._from_worker(identity, frames)
        identity = routing_id(worker, epoch)
        self._links.pop(identity, None)
        self._worker_door.forget(identity)
        self.give(WorkerExited(worker=worker, epoch=epoch, status=status, log_tail=log_tail))

    def model_inspected(self, model: str, facts: ModelFacts) -> None:
        """A model's files were looked at."""
        self.give(ModelInspected(model=model, facts=facts))

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
        door = self._worker_door
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
        link = self._links.get(identity) or self._admit(identity, message.header)
        if link is None:
            door.counters["unauthorised"] += 1
            refused = Failed(code=ErrorCode.unauthorised, message="this is no worker of ours")
            door.send(identity, encode(refused))
            return
        worker, epoch = link
        self.give(WorkerSent(worker=worker, epoch=epoch, header=message.header, body=message.body))

    def _admit(self, identity: bytes, header: Header) -> tuple[str, int] | None:
        """Link a routing id to the process we started, if it proves to be that."""
        if not isinstance(header, Register):
            return None
        worker, epoch = header.worker, header.epoch
        if identity != routing_id(worker, epoch):
            return None
        if not self._processes.is_known(worker, epoch, header.pid, header.secret):
            return None
        self._links[identity] = (worker, epoch)
        return worker, epoch

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
                self._inspector.ask(effect.model, effect.body)
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
        doors = {door.name: door.counters for door in self.doors}
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
        door = self._client_doors.get(peer.door)  # on tcp it may have been closed
        delivery = Delivery.peer_gone if door is None else door.send(peer.identity, frames)
        match delivery:
            case Delivery.on_its_way:
                pass
            case Delivery.peer_gone:
                self._events.append(ClientVanished(peer=peer))
            case Delivery.peer_slow | Delivery.dropped:
                self._events.append(ClientOverflowed(peer=peer))

    def _send_to_worker(self, effect: SendToWorker) -> None:
        identity = routing_id(effect.worker, effect.epoch)
        delivery = self._worker_door.send(identity, encode(effect.header, effect.body))
        if delivery in (Delivery.peer_gone, Delivery.dropped):
            self._unreachable(identity)

    def _unreachable(self, identity: bytes) -> None:
        link = self._links.get(identity)
        if link is not None:
            self.give(WorkerUnreachable(worker=link[0], epoch=link[1]))

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
        doors = {
            f"{door.name}_{key}": value
            for door in self.doors
            for key, value in door.counters.items()
        }
        return {
            **self._counters,
            **doors,
            **self._lookout.counters(),
            "busy_cpu_s": self._busy_cpu_s,
        }


def routing_id(worker: str, epoch: int) -> bytes:
    """The name of one worker incarnation on the workers' socket."""
    return f"{worker}-{epoch}".encode()
