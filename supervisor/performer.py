"""What the core decides, done: effects out, and the events that come of it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..protocol.codec import encode
from ..protocol.messages import Body, Header, Measured, Snapshot
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
    ClientOverflowed,
    ClientVanished,
    Event,
    Peer,
    ProcessStarted,
    ProcessStartFailed,
    WorkerExited,
    WorkerUnreachable,
)
from .inspection import inspector
from .processes.workers import Processes
from .shell_figures import ShellFigures
from .sockets import Sockets
from .watching.lookout import Lookout
from .worker_links import routing_id


@final
class Performer:
    """Nothing here waits. ``deliver`` gets what comes of an effect later, in the loop."""

    def __init__(
        self,
        sockets: Sockets,
        processes: Processes,
        *,
        configs: ConfigSource,
        lookout: Lookout,
        figures: ShellFigures,
        deliver: Callable[[Event], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._sockets = sockets
        self._processes = processes
        self._configs = configs
        self._lookout = lookout
        self._figures = figures
        self._deliver = deliver
        self._on_stop = on_stop

    def perform(self, effect: Effect) -> Event | None:
        """Do it; what has come of it, if that is known already."""
        match effect:
            case SendToClient():
                return self.send(effect.peer, effect.header, effect.body)
            case SendToWorker():
                return self._send_to_worker(effect)
            case SendSnapshot() | SendMetrics():
                return self._send_state(effect)
            case SpawnProcess():
                return self._spawn(effect)
            case SignalProcess():
                return self._signal(effect)
            case _:
                self._begin(effect)
                return None

    def send(
        self, peer: Peer, header: Header, body: bytes | Body = b""
    ) -> ClientVanished | ClientOverflowed | None:
        """Send a message to a client; what that has shown of it, if it does not take it."""
        return self._sockets.send_to_client(peer, encode(header, body))

    def _send_state(
        self, effect: SendSnapshot | SendMetrics
    ) -> ClientVanished | ClientOverflowed | None:
        if isinstance(effect, SendSnapshot):
            completed = self._figures.completed(effect.snapshot)
            return self.send(effect.peer, Snapshot(id=effect.id), completed)
        measured = self._figures.measured(effect.metrics)
        return self.send(effect.peer, Measured(id=effect.id), measured)

    def _begin(
        self, effect: StartWatch | InspectModel | ReadConfig | AdoptConfig | Note | StopServing
    ) -> None:
        match effect:
            case StartWatch():
                self._lookout.start(effect)
            case InspectModel():
                inspector.look(effect, self._deliver)
            case ReadConfig():
                self._configs.read(effect, self._deliver)
            case AdoptConfig():
                self._configs.adopt(effect.config)
                self._processes.serve_models(self._configs.current.models)
            case Note():
                self._lookout.note(effect.name, effect.fields)
            case StopServing():
                self._lookout.end()
                self._on_stop()

    def _send_to_worker(self, effect: SendToWorker) -> WorkerUnreachable | None:
        identity = routing_id(effect.worker, effect.epoch)
        if self._sockets.send_to_worker(identity, encode(effect.header, effect.body)):
            return None
        return WorkerUnreachable(worker=effect.worker, epoch=effect.epoch)

    def _spawn(self, effect: SpawnProcess) -> ProcessStarted | ProcessStartFailed:
        worker, epoch = effect.worker, effect.epoch
        try:
            pid = self._processes.start(worker, epoch, cpu_share=effect.cpu_share)
        except OSError as error:
            return ProcessStartFailed(worker=worker, epoch=epoch, reason=str(error))
        return ProcessStarted(worker=worker, epoch=epoch, pid=pid)

    def _signal(self, effect: SignalProcess) -> WorkerExited | None:
        if self._processes.signal(effect.worker, effect.epoch, effect.signal):
            return None
        return WorkerExited(worker=effect.worker, epoch=effect.epoch, status=-9)
