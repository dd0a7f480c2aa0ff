"""The rows of the core's tables: requests, commands, models, workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from ...protocol.messages import LoadedBody
from ..config.model_section import ModelSection
from .events import Peer
from .facts import ModelFacts
from .home import Home
from .shares import Client

SENTENCE_CHARACTERS = 2000
"""Longest sentence we write into a header: four bytes each leave room in the header's limit."""


class WorkerState(StrEnum):
    """Where a process slot is in its life; ``stopped`` and ``fatal`` need no deadline.

    ``loading`` is alive without any model yet, ``ready`` has one, ``busy`` computes.
    """

    stopped = "stopped"
    spawning = "spawning"
    registering = "registering"
    loading = "loading"
    ready = "ready"
    busy = "busy"
    stopping = "stopping"
    lost = "lost"
    backoff = "backoff"
    fatal = "fatal"


class Cause(StrEnum):
    """Why a worker failed, in a word that counts: one of few, whatever its sentence says."""

    start_failed = "start_failed"
    start_timeout = "start_timeout"
    register_timeout = "register_timeout"
    load_stalled = "load_stalled"
    unload_timeout = "unload_timeout"
    silent = "silent"
    stalled = "stalled"
    unreachable = "unreachable"
    kept_request = "kept_request"
    broke_protocol = "broke_protocol"
    killed = "killed"
    exited = "exited"
    left = "left"
    unusable = "unusable"


WITHOUT_PROCESS = frozenset({WorkerState.stopped, WorkerState.backoff, WorkerState.fatal})
"""States in which no process of the worker may exist."""

COMING = frozenset({WorkerState.spawning, WorkerState.registering})
"""States on the way from nothing to alive."""

ALIVE = frozenset({WorkerState.loading, WorkerState.ready, WorkerState.busy})
"""States in which a worker takes orders, and must answer pings."""


class Residency(StrEnum):
    """Where a model is in its worker.

    ``loading`` begins when its place is given to it: its worker may have to be started first.
    ``unloading`` ends when the worker says so, or when its process is gone.
    """

    absent = "absent"
    loading = "loading"
    ready = "ready"
    draining = "draining"
    unloading = "unloading"
    backoff = "backoff"
    fatal = "fatal"


SERVED = frozenset({Residency.ready, Residency.draining})
"""States of a model that requests may be running on."""

OUTSIDE = frozenset({Residency.absent, Residency.backoff, Residency.fatal})
"""States in which nothing of a model is in any process."""


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
    client: Client
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
    leased_at: float = 0.0
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
class Reading:
    """The configuration is to be read again, for all who ask the same; ``n`` once it has begun."""

    dry_run: bool
    body: bytes
    commands: list[Command] = field(default_factory=list[Command])
    n: int = 0
    due_at: float | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Model:
    """One configured model: where it is, who waits for it, and what is known of it.

    ``worker`` names its slot; ``apart`` says why that is not its group's. ``facts`` are of its
    present or next load, ``guess_bytes`` what was reserved where they tell nothing. ``summoned``:
    it is to be loaded though nobody waits; ``waits`` says what keeps it out, ``makes_room``: others
    go for it. ``ordered``: its worker was told to load it. ``going`` says why it has to leave,
    ``leaving`` is the serial of the last request that is still served before it goes; None: it
    stays. ``removed``: no request may come any more.
    """

    name: str
    settings: ModelSection
    worker: str
    state: Residency = Residency.absent
    deadline: float | None = None
    reason: str = ""
    apart: str = ""
    queue: dict[bytes, Request] = field(default_factory=dict[bytes, Request])
    spawns: list[Command] = field(default_factory=list[Command])
    retires: list[Command] = field(default_factory=list[Command])
    leaving: int | None = None
    pinned: bool = False
    summoned: bool = False
    called_at: float | None = None
    waits: str = ""
    makes_room: bool = False
    ran_out: bool = False
    facts: ModelFacts | None = None
    guess_bytes: int | None = None
    going: str = ""
    removed: bool = False
    ordered: bool = False
    loaded: LoadedBody | None = None
    shared_bytes: int = 0
    failures: list[float] = field(default_factory=list[float])
    began_at: float = 0.0
    drain_began_at: float | None = None
    ready_at: float = 0.0
    idle_since: float = 0.0
    stage: str = ""
    stage_done: int = 0
    stage_total: int = 0
    stage_told_at: float = float("-inf")
    service_s: float | None = None
    load_s: float | None = None
    completed: int = 0
    loads: int = 0
    unloads: int = 0

    @property
    def wanted(self) -> bool:
        """Whether anyone waits for it, or it is to be there in any case."""
        return bool(self.queue or self.spawns or self.summoned)


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """One process slot through all its incarnations; ``epoch`` counts them.

    ``home`` is what it is for, ``name`` what it is called: another slot may have been before it.
    """

    name: str
    home: Home
    models: tuple[str, ...] = ()
    state: WorkerState = WorkerState.stopped
    deadline: float | None = None
    epoch: int = 0
    pid: int | None = None
    connected: bool = False
    reason: str = ""
    cause: Cause | None = None
    last_lines: str = ""
    active: dict[bytes, Request] = field(default_factory=dict[bytes, Request])
    questions: dict[bytes, Question] = field(default_factory=dict[bytes, Question])
    stop_step: StopStep = StopStep.polite
    kills: int = 0
    failures: list[float] = field(default_factory=list[float])
    restarts: int = 0
    ready_at: float | None = None
    ping_n: int = 0
    ping_at: float = 0.0
    pong_at: float = 0.0
    steps: int = 0
    moved_at: float = 0.0
    memory_bytes: int = 0
    settled_bytes: int = 0
