"""The core's tables, and the few operations all its parts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ...protocol import messages
from ...protocol.errors import ErrorCode
from ...protocol.messages import Header
from ..config.limits import Limits
from ..config.model_section import ModelSection
from .effects import Effect, Note, SendToClient, SendToWorker
from .events import Peer
from .home import Home, configured, free_name
from .life import Residency, WorkerState
from .metrics import Metrics
from .records import Command, Model, Reading, Request, Worker
from .refusals import failed
from .shares import Shares

ENTERED = {
    WorkerState.spawning: "worker_spawned",
    WorkerState.registering: "worker_started",
    WorkerState.loading: "worker_registered",
    WorkerState.stopping: "worker_stop_began",
    WorkerState.stopped: "worker_stopped",
    WorkerState.lost: "worker_lost",
    WorkerState.backoff: "worker_restart_delayed",
    WorkerState.fatal: "worker_given_up",
}
"""The event that tells of each state's beginning; ready and busy come and go untold."""


@dataclass(slots=True, kw_only=True, eq=False)
class State:
    """Everything the supervisor knows. One owner: :class:`~.machine.Core`.

    ``touched`` are workers to be settled at the end of this event, ``callers`` the absent models
    that may be wanted, oldest call first. ``measured``: a worker was seen to have grown.
    ``changing`` are models that move or go as soon as they are in no process. Of ``readings`` the
    first has begun.
    """

    limits: Limits
    random: Callable[[], float]
    pool_bytes: int
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    requests: dict[bytes, Request] = field(default_factory=dict[bytes, Request])
    effects: list[Effect] = field(default_factory=list[Effect])
    touched: dict[str, None] = field(default_factory=dict[str, None])
    callers: dict[str, None] = field(default_factory=dict[str, None])
    changing: dict[str, None] = field(default_factory=dict[str, None])
    readings: list[Reading] = field(default_factory=list[Reading])
    last_reading: int = 0
    counters: Counter[str] = field(default_factory=Counter[str])
    metrics: Metrics = field(default_factory=Metrics)
    shutdowns: list[Command] = field(default_factory=list[Command])
    shutdown_level: int = 0
    shutdown_told: str = ""
    stopped_serving: bool = False
    measured: bool = False
    last_epoch: int = 0
    last_serial: int = 0
    queued: int = 0
    queued_bytes: int = 0
    shares: Shares = field(default_factory=Shares)
    ticked_at: float | None = None

    @classmethod
    def of(
        cls,
        limits: Limits,
        models: Mapping[str, ModelSection],
        random: Callable[[], float],
        pool_bytes: int,
    ) -> State:
        """Tables with a slot for each group and each model without one, all stopped."""
        s = cls(limits=limits, random=random, pool_bytes=pool_bytes)
        for name, section in models.items():
            s.add(name, section)
        return s

    def add(self, name: str, section: ModelSection) -> Model:
        """A new model's row, where the configuration wants it."""
        slot = self.slot(configured(name, section))
        slot.models = (*slot.models, name)
        model = Model(name=name, settings=section, worker=slot.name, pinned=section.pinned)
        self.models[name] = model
        return model

    def slot(self, home: Home) -> Worker:
        """The slot of a group or of a model alone, made if there is none: no other way leads in."""
        for worker in self.workers.values():
            if worker.home == home:
                return worker
        worker = Worker(name=free_name(home.name, self.workers), home=home)
        self.workers[worker.name] = worker
        return worker

    def emit(self, effect: Effect) -> None:
        """Add one effect to this event's answer."""
        self.effects.append(effect)

    def tell(self, peer: Peer, header: Header, body: bytes | messages.Body = b"") -> None:
        """Send a message to a client."""
        self.effects.append(SendToClient(peer=peer, header=header, body=body))

    def order(self, worker: Worker, header: Header, body: bytes | messages.Body = b"") -> None:
        """Send a message to a worker's current incarnation."""
        self.effects.append(
            SendToWorker(worker=worker.name, epoch=worker.epoch, header=header, body=body)
        )

    def note(self, name: str, **fields: str | float) -> None:
        """Write an event down for people."""
        self.effects.append(Note(name=name, fields=fields))

    def touch(self, worker: Worker) -> None:
        """Have ``worker`` settled at the end of this event."""
        self.touched[worker.name] = None

    def models_of(self, worker: Worker) -> Iterator[Model]:
        """The models a worker is for."""
        return (self.models[name] for name in worker.models)

    def worker_of(self, model: Model) -> Worker:
        """The slot a model belongs to."""
        return self.workers[model.worker]

    def enter(
        self,
        worker: Worker,
        state: WorkerState,
        deadline: float | None,
        **why: str | float,
    ) -> None:
        """Put a worker into another state, with the moment that state has to end."""
        worker.state = state
        worker.deadline = deadline
        self.touch(worker)
        self.note(ENTERED[state], worker=worker.name, epoch=worker.epoch, **why)
        for model in self.models_of(worker):
            self.tell_stage(model, state)

    def place(self, model: Model, state: Residency, deadline: float | None = None) -> None:
        """Put a model into another state, with the moment that state has to end."""
        model.state = state
        model.deadline = deadline
        self.call(model)
        self.tell_stage(model, state)

    def call(self, model: Model) -> None:
        """Have it looked at who waits for a model, and whether it should be loaded."""
        self.touch(self.worker_of(model))
        if model.state is Residency.absent:
            self.callers[model.name] = None

    def tell_stage(self, model: Model, stage: str) -> None:
        """Tell who commanded a load how far it is."""
        for command in model.spawns:
            event = messages.Event(id=command.id, name="state", model=model.name, stage=stage)
            self.tell(command.peer, event)

    def waiting_commands(self) -> Iterator[list[Command]]:
        """The lists of commands that wait for their end."""
        for model in self.models.values():
            yield from (model.spawns, model.retires)
        for reading in self.readings:
            yield reading.commands
        yield self.shutdowns

    def fail_commands(
        self,
        commands: list[Command],
        code: ErrorCode,
        message: str,
        *,
        retryable: bool = False,
    ) -> None:
        """End waiting commands without success."""
        for command in commands:
            self.tell(command.peer, failed(command.id, code, message, retryable=retryable))
        commands.clear()

    def complete_commands(self, commands: list[Command]) -> None:
        """End waiting commands with success."""
        for command in commands:
            self.tell(command.peer, messages.Done(id=command.id))
        commands.clear()
