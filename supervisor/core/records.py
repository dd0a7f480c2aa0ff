"""The rows of the core's tables: requests, commands, models, workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocol.messages import LoadedBody
from ..config.model_section import ModelSection
from .events import Peer
from .facts import ModelFacts
from .home import Home
from .life import Cause, Phase, Residency, StopStep, WorkerState
from .shares import Client

SENTENCE_CHARACTERS = 2000
"""Longest sentence we write into a header: four bytes each leave room in the header's limit."""


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
