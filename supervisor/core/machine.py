"""The pure state machine: ``handle(event, now)`` answers with what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...protocol.messages import (
    WINDOW_CHUNKS,
    AddCredit,
    CacheState,
    Cancel,
    Chunk,
    ClearCache,
    Done,
    Failed,
    Generate,
    Hello,
    Loaded,
    LoadFailed,
    Logs,
    Metrics,
    Pin,
    Pong,
    Progress,
    ReadCache,
    Register,
    Reload,
    Retire,
    Shutdown,
    Spawn,
    Status,
    Subscribe,
    Unloaded,
    Welcome,
)
from ..config.limits import Limits
from ..config.model_section import ModelSection
from . import (
    admission,
    commands,
    dispatch,
    eviction,
    failure,
    health,
    inspecting,
    intake,
    keeping,
    load_failure,
    reading,
    relay,
    reload,
    residency,
    shutdown,
    starting,
    timers,
)
from .effects import Effect, SendMetrics, SendSnapshot, StartWatch, StopServing
from .events import (
    ClientErred,
    ClientOverflowed,
    ClientSent,
    ClientVanished,
    ConfigRead,
    ConfigRefused,
    Event,
    ModelInspected,
    Peer,
    ProcessStarted,
    ProcessStartFailed,
    ReloadAsked,
    ServingBegan,
    ShutdownAsked,
    TimePassed,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from .life import WITHOUT_PROCESS
from .metrics_page import metrics_page
from .records import Worker
from .snapshot import Identity, snapshot
from .state import State

UNBOUNDED_BYTES = 2**60
"""A pool that nothing fills."""


class Core:
    """One owner of all state; no I/O and no clock of its own."""

    def __init__(
        self,
        limits: Limits,
        models: Mapping[str, ModelSection],
        identity: Identity,
        random: Callable[[], float],
        *,
        pool_bytes: int = UNBOUNDED_BYTES,
    ) -> None:
        self.state: State = State.of(limits, models, random, pool_bytes)
        self.identity: Identity = identity

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in what happened at ``now`` (seconds, monotonic); answer what to do, in order."""
        s = self.state
        self._route(event, now)
        if s.measured:
            eviction.relieve(s, now)
        while s.touched:
            self._settle(now)
            reload.conclude(s)
            admission.consider(s, now)
        if s.shutdown_level and not s.stopped_serving:
            self._finish_shutdown()
        effects, s.effects = s.effects, []
        return effects

    def _settle(self, now: float) -> None:
        s = self.state
        while s.touched:
            name, _ = s.touched.popitem()
            worker = s.workers.get(name)
            if worker is not None:
                dispatch.settle(s, worker, now)

    def next_deadline(self) -> float:
        """The earliest moment at which a TimePassed changes anything; infinity if none."""
        return timers.next_deadline(self.state)

    def _route(self, event: Event, now: float) -> None:
        s = self.state
        match event:
            case WorkerSent():
                self._worker_sent(event, now)
            case ClientSent():
                self._client_sent(event, now)
            case TimePassed():
                timers.passed(s, now)
            case ClientErred() | ClientVanished() | ClientOverflowed():
                self._client_failed(event, now)
            case ServingBegan():
                keeping.preload(s)
            case ModelInspected():
                inspecting.inspected(s, event)
            case ShutdownAsked():
                shutdown.shut_down(s, now, min(3, s.shutdown_level + 1))
            case ReloadAsked() | ConfigRead() | ConfigRefused():
                self._config_event(event, now)
            case ProcessStarted() | ProcessStartFailed() | WorkerExited() | WorkerUnreachable():
                self._process_event(event, now)

    def _client_failed(
        self, event: ClientErred | ClientVanished | ClientOverflowed, now: float
    ) -> None:
        match event:
            case ClientErred():
                intake.erred(self.state, event, now)
            case ClientVanished():
                intake.vanished(self.state, event, now)
            case ClientOverflowed():
                intake.overflowed(self.state, event, now)

    def _config_event(self, event: ReloadAsked | ConfigRead | ConfigRefused, now: float) -> None:
        match event:
            case ReloadAsked():
                reading.asked(self.state, event, now)
            case ConfigRead():
                reading.read(self.state, event, now)
            case ConfigRefused():
                reading.refused(self.state, event, now)

    def _process_event(
        self,
        event: ProcessStarted | ProcessStartFailed | WorkerExited | WorkerUnreachable,
        now: float,
    ) -> None:
        worker = self._current(event.worker, event.epoch)
        if worker is None or worker.state in WITHOUT_PROCESS:
            self.state.counters["stale_dropped"] += 1
            return
        match event:
            case ProcessStarted():
                starting.started(self.state, worker, event, now)
            case ProcessStartFailed():
                starting.start_failed(self.state, worker, event, now)
            case WorkerExited():
                failure.exited(self.state, worker, event, now)
            case WorkerUnreachable():
                failure.unreachable(self.state, worker, now)

    def _worker_sent(self, event: WorkerSent, now: float) -> None:
        s = self.state
        worker = self._current(event.worker, event.epoch)
        if worker is None or worker.state in WITHOUT_PROCESS:
            s.counters["stale_dropped"] += 1
            return
        header = event.header
        match header:
            case Chunk():
                relay.chunk(s, worker, header, event, now)
            case Done() | Failed() | CacheState():
                relay.ended(s, worker, header, event, now)
            case Pong():
                health.pong(s, worker, header, now)
            case Register():
                starting.registered(s, worker, now)
            case Progress():
                residency.progressed(s, worker, header, now)
            case Loaded():
                residency.loaded(s, worker, header, event.body, now)
            case LoadFailed():
                load_failure.load_failed(s, worker, header, now)
            case Unloaded():
                residency.unloaded(s, worker, header, now)
            case _:
                s.counters["worker_protocol_errors"] += 1

    def _client_sent(self, event: ClientSent, now: float) -> None:
        s, peer, header = self.state, event.peer, event.header
        match header:
            case AddCredit():
                intake.add_credit(s, peer, header, now)
            case Generate():
                intake.generate(s, event, header, now)
            case Cancel() if peer.door == "control" or (
                peer.door == "tcp" and header.id not in s.requests
            ):
                commands.cancel(s, peer, header)
            case Cancel():
                intake.cancel(s, peer, header, now)
            case Hello():
                s.tell(peer, self._welcome())
            case Status() | Metrics() | Subscribe() | Logs():
                self._look(peer, header, now)
            case Spawn() | Retire() | Pin() | ReadCache() | ClearCache() | Shutdown():
                commands.command(s, peer, header, now)
            case Reload():
                commands.reload(s, peer, header, event.body, now)
            case _:
                s.counters["client_protocol_errors"] += 1

    def _look(self, peer: Peer, header: Status | Metrics | Subscribe | Logs, now: float) -> None:
        """Show something; looking changes nothing."""
        s = self.state
        match header:
            case Status():
                body = snapshot(s, self.identity, now)
                s.emit(SendSnapshot(peer=peer, id=header.id, snapshot=body))
            case Metrics():
                page = metrics_page(s, self.identity, now)
                s.emit(SendMetrics(peer=peer, id=header.id, metrics=page))
            case Subscribe():
                s.emit(StartWatch(peer=peer, header=header))
            case Logs():
                commands.show_log(s, peer, header)

    def _current(self, name: str, epoch: int) -> Worker | None:
        """The worker, if ``epoch`` is its living incarnation."""
        worker = self.state.workers.get(name)
        return worker if worker is not None and worker.epoch == epoch else None

    def _welcome(self) -> Welcome:
        return Welcome(
            instance=self.identity.instance,
            version=self.identity.version,
            window=WINDOW_CHUNKS,
        )

    def _finish_shutdown(self) -> None:
        s = self.state
        if shutdown.is_over(s):
            s.stopped_serving = True
            s.complete_commands(s.shutdowns)
            s.emit(StopServing())
        else:
            shutdown.tell(s)
