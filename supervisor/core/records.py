"""The rows of the core's tables: requests, commands, models, workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from ...protocol.messages import LoadedBody
from ..model_section import ModelSection
from .events import Peer

SENTENCE_CHARACTERS = 2000
"""Longest sentence we write into a header: four bytes each leave room in the header's limit."""


class WorkerState(StrEnum):
    """Where a worker is in its life; ``stopped`` and ``fatal`` need no deadline."""

    stopped = "stopped"
    spawning = "spawning"
    registering = "registering"
    loading = "loading"
    ready = "ready"
    busy = "busy"
    draining = "draining"
    stopping = "stopping"
    lost = "lost"
    backoff = "backoff"
    fatal = "fatal"


WITHOUT_PROCESS = frozenset({WorkerState.stopped, WorkerState.backoff, WorkerState.fatal})
"""States in which no process of the worker may exist."""

STARTING = frozenset({WorkerState.spawning, WorkerState.registering, WorkerState.loading})
"""States on the way from nothing to ready."""

SERVING = frozenset({WorkerState.ready, WorkerState.busy})
"""States in which a worker takes new work."""

ANSWERING = SERVING | {WorkerState.loading, WorkerState.draining}
"""States in which a worker must answer pings."""


class Phase(Enum):
    """Where a request is; ``ended`` is answered, though its worker may not know it yet."""

    queued = "queued"
    running = "running"
    cancelling = "cancelling"
    ended = "ended"


class StopStep(Enum):
    """How hard a stopping worker has been asked to leave."""

    polite = "polite"
    terminate = "terminate"
    kill = "kill"


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One generate, from acceptance until its worker has let go of it."""

    id: bytes
    peer: Peer
    model: str
    body: bytes
    serial: int
    accepted_at: float
    granted: int
    deadline_at: float | None
    phase: Phase = Phase.queued
    worker: str = ""
    epoch: int = 0
    next_seq: int = 0
    due_at: float | None = None
    told: str = ""
    told_at: float = 0.0
    chunk_at: float = 0.0

    @property
    def has_credit(self) -> bool:
        """Whether its worker may send another chunk."""
        return self.next_seq < self.granted


@dataclass(slots=True, kw_only=True, frozen=True)
class Command:
    """A control command that waits for its end."""

    peer: Peer
    id: bytes


@dataclass(slots=True, kw_only=True, frozen=True)
class Question(Command):
    """A control command that a worker answers itself, until ``due_at``."""

    due_at: float


@dataclass(slots=True, kw_only=True, eq=False)
class Model:
    """One configured model: who waits for it, and what is known of it."""

    name: str
    settings: ModelSection
    worker: str
    queue: dict[bytes, Request] = field(default_factory=dict[bytes, Request])
    spawns: list[Command] = field(default_factory=list[Command])
    loaded: LoadedBody | None = None
    stage: str = ""
    stage_done: int = 0
    stage_total: int = 0
    stage_told_at: float = float("-inf")
    completed: int = 0
    loads: int = 0
    unloads: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """One worker slot through all its incarnations; ``epoch`` counts them."""

    name: str
    models: tuple[str, ...]
    state: WorkerState = WorkerState.stopped
    deadline: float | None = None
    epoch: int = 0
    pid: int | None = None
    connected: bool = False
    reason: str = ""
    last_lines: str = ""
    active: dict[bytes, Request] = field(default_factory=dict[bytes, Request])
    retires: list[Command] = field(default_factory=list[Command])
    questions: dict[bytes, Question] = field(default_factory=dict[bytes, Question])
    drain_serial: int = 0
    stop_step: StopStep = StopStep.polite
    failures: list[float] = field(default_factory=list[float])
    restarts: int = 0
    spawned_at: float = 0.0
    ready_at: float | None = None
    idle_since: float = 0.0
    ping_n: int = 0
    ping_at: float = 0.0
    pong_at: float = 0.0
    steps: int = 0
    moved_at: float = 0.0
    memory_bytes: int = 0
