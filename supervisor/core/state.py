"""The core's tables, and the few operations all its parts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ...protocol import messages
from ...protocol.errors import ErrorCode
from ...protocol.messages import Header
from ..limits import Limits
from ..model_section import ModelSection
from .effects import Effect, Note, SendToClient, SendToWorker
from .events import Peer
from .metrics import Metrics
from .records import SENTENCE_CHARACTERS, Command, Model, Request, Worker, WorkerState


@dataclass(slots=True, kw_only=True, eq=False)
class State:
    """Everything the supervisor knows. One owner: :class:`~.machine.Core`."""

    limits: Limits
    random: Callable[[], float]
    models: dict[str, Model]
    workers: dict[str, Worker]
    requests: dict[bytes, Request] = field(default_factory=dict[bytes, Request])
    effects: list[Effect] = field(default_factory=list[Effect])
    touched: dict[str, None] = field(default_factory=dict[str, None])
    counters: Counter[str] = field(default_factory=Counter[str])
    metrics: Metrics = field(default_factory=Metrics)
    shutdowns: list[Command] = field(default_factory=list[Command])
    shutdown_level: int = 0
    stopped_serving: bool = False
    last_epoch: int = 0
    last_serial: int = 0
    queued: int = 0
    queued_bytes: int = 0
    ticked_at: float | None = None

    @classmethod
    def of(
        cls, limits: Limits, models: Mapping[str, ModelSection], random: Callable[[], float]
    ) -> State:
        """Tables with one worker for each configured model, all stopped."""
        return cls(
            limits=limits,
            random=random,
            models={n: Model(name=n, settings=b, worker=n) for n, b in models.items()},
            workers={n: Worker(name=n, models=(n,)) for n in models},
        )

    def emit(self, effect: Effect) -> None:
        """Add one effect to this event's answer."""
        self.effects.append(effect)

    def tell(self, peer: Peer, header: Header, body: bytes = b"") -> None:
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

    def wanted(self, worker: Worker) -> bool:
        """Whether anyone waits for one of the worker's models."""
        return any(model.queue or model.spawns for model in self.models_of(worker))

    def enter(self, worker: Worker, state: WorkerState, deadline: float | None) -> None:
        """Put a worker into another state, with the moment that state has to end."""
        worker.state = state
        worker.deadline = deadline
        self.touch(worker)
        if state not in (WorkerState.ready, WorkerState.busy):
            self.note(f"worker_{state}", worker=worker.name, epoch=worker.epoch)
        for model in self.models_of(worker):
            for command in model.spawns:
                self.tell(
                    command.peer,
                    messages.Event(id=command.id, name="state", model=model.name, stage=state),
                )

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
            self.tell(
                command.peer,
                messages.Failed(
                    id=command.id,
                    code=code,
                    message=message[:SENTENCE_CHARACTERS],
                    retryable=retryable,
                ),
            )
        commands.clear()

    def complete_commands(self, commands: list[Command]) -> None:
        """End waiting commands with success."""
        for command in commands:
            self.tell(command.peer, messages.Done(id=command.id))
        commands.clear()
