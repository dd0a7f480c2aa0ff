"""A seeded world around the pure core: clients, processes, faults; it checks as it goes."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import structs

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    WINDOW_CHUNKS,
    Accepted,
    AddCredit,
    Assign,
    CacheBody,
    CacheState,
    Cancel,
    Chunk,
    ClearCache,
    Done,
    Failed,
    Generate,
    Header,
    Load,
    Loaded,
    LoadedBody,
    LoadFailed,
    Ping,
    Pong,
    Progress,
    ReadCache,
    Register,
    Registered,
    Retire,
    Shutdown,
    Spawn,
    Status,
    Stop,
    Unload,
    Unloaded,
)
from dflashd.supervisor.core import accounts
from dflashd.supervisor.core.effects import (
    Effect,
    InspectModel,
    SendSnapshot,
    SendToClient,
    SendToWorker,
    SignalProcess,
    SpawnProcess,
    StopServing,
)
from dflashd.supervisor.core.events import (
    ClientOverflowed,
    ClientSent,
    ClientVanished,
    Event,
    ModelInspected,
    Peer,
    ProcessStarted,
    ProcessStartFailed,
    ShutdownAsked,
    TimePassed,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from dflashd.supervisor.core.facts import ModelFacts, Weights
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.records import (
    ALIVE,
    OUTSIDE,
    SERVED,
    WITHOUT_PROCESS,
    Model,
    Phase,
    Request,
    Residency,
    WorkerState,
)
from dflashd.supervisor.core.snapshot import Identity
from dflashd.supervisor.limits import Limits
from dflashd.supervisor.model_section import ModelSection

LIMITS = Limits(
    active_requests_per_worker=3,
    queued_requests_per_model=8,
    queued_requests=16,
    pending_commands=12,
    spawn_timeout_s=5,
    register_timeout_s=8,
    load_stall_s=10,
    pong_timeout_s=6,
    loading_pong_timeout_s=12,
    prefill_stall_s=12,
    decode_stall_s=8,
    cancel_timeout_s=3,
    release_timeout_s=15,
    drain_timeout_s=10,
    unload_timeout_s=6,
    inspect_timeout_s=4,
    max_wait_behind_s=6,
    min_residency_s=2,
    evict_drain_timeout_s=12,
    shutdown_drain_s=5,
    stop_timeout_s=2,
    terminate_timeout_s=2,
    kill_timeout_s=2,
    backoff_limit_s=20,
    backoff_wait_s=1,
    failure_window_s=60,
    stable_s=30,
)
GROUPS = {"a": None, "b": None, "c": "g", "d": "g", "e": "g"}
MODELS = tuple(GROUPS)
MIB = 2**20
SIZES = {"a": 300 * MIB, "b": 300 * MIB, "c": 200 * MIB, "d": 200 * MIB, "e": 2000 * MIB}
POOL_BYTES = 1000 * MIB
LOADED = LoadedBody(
    digest="d",
    engine="dflash",
    block_tokens=8,
    context_tokens=100,
    memory_bytes=1000,
    device="cpu",
    dtype="float32",
)


CACHE = msgspec.msgpack.encode(CacheBody(state="open"))


@dataclass(slots=True, eq=False)
class Process:
    """One simulated worker process."""

    worker: str
    epoch: int
    started: bool = False
    registered: bool = False
    loads: list[str] = field(default_factory=list[str])
    unloads: list[str] = field(default_factory=list[str])
    held: set[str] = field(default_factory=set[str])
    killed: int | None = None
    leaving: bool = False
    deaf: bool = False
    stuck: bool = False
    steps: int = 0
    questions: deque[bytes] = field(default_factory=deque[bytes])
    pings: deque[int] = field(default_factory=deque[int])
    jobs: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])
    cancelled: set[bytes] = field(default_factory=set[bytes])


@dataclass(slots=True, eq=False)
class Asked:
    """What the world remembers of one request or command."""

    peer: Peer
    what: str
    seq: int = 0
    leased: bool = False
    answers: int = 0
    gone: bool = False


def promised(model: Model, request: Request) -> bool:
    """Whether a model still serves a request before it goes."""
    return model.leaving is None or request.serial <= model.leaving


class World:
    """Drives a core with seeded chance; every broken promise is an AssertionError."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        identity = Identity(instance="sim", version="0", pid=1, started_at=self.now)
        models = {name: ModelSection(target=name, group=group) for name, group in GROUPS.items()}
        self.core = Core(LIMITS, models, identity, self.rng.random, pool_bytes=POOL_BYTES)
        self.inspections: deque[str] = deque()
        self.processes: dict[tuple[str, int], Process] = {}
        self.asked: dict[bytes, Asked] = {}
        self.peers = [self.new_peer("requests") for _ in range(4)]
        self.owner = Peer("control", b"owner")
        self.stopped = False
        self.reserved_bytes = 0
        self.drained: set[str] = set()
        self.calm = False
        self.script: list[tuple[float, Event]] = []
        self.seen: set[str] = set()

    # --- one step ------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one random thing."""
        if self.stopped:
            return
        actions = self.actions()
        action = self.rng.choices([a for a, _ in actions], [w for _, w in actions])[0]
        action()

    def actions(self) -> list[tuple[Any, float]]:
        """What may happen, and how likely it is."""
        quiet: list[tuple[Any, float]] = [
            (self.pass_time, 6),
            (self.worker_moves, 24),
            (self.client_reads, 5),
            (self.inspect, 3),
        ]
        if self.calm:
            return quiet
        return [
            *quiet,
            (self.generate, 8),
            (self.cancel, 2),
            (self.foreign_cancel, 0.3),
            (self.status, 0.5),
            (self.spawn, 0.7),
            (self.retire, 0.5),
            (self.ask_cache, 0.7),
            (self.cancel_command, 0.2),
            (self.client_vanishes, 0.4),
            (self.client_overflows, 0.1),
            (self.crash, 0.6),
            (self.hang, 0.3),
            (self.stale_message, 0.5),
            (self.long_pause, 0.05),
            (self.unreachable, 0.1),
        ]

    def give(self, event: Event) -> None:
        """Hand one event to the core, obey its effects, check every invariant."""
        self.script.append((self.now, event))
        models = self.core.state.models.values()
        self.drained = {model.name for model in models if model.state is Residency.draining}
        for effect in self.core.handle(event, self.now):
            self.obey(effect)
        self.check()

    # --- effects -------------------------------------------------------------------------------

    def obey(self, effect: Effect) -> None:
        """Let the world react to one effect, checking what may be checked at once."""
        match effect:
            case SendToClient():
                self.client_hears(effect.peer, effect.header)
            case SendSnapshot():
                self.answered(effect.peer, effect.id)
            case SendToWorker():
                self.worker_hears(effect.worker, effect.epoch, effect.header)
            case SpawnProcess():
                alive = [p for p in self.processes.values() if p.worker == effect.worker]
                assert not alive, "a second process of one worker"
                process = Process(effect.worker, effect.epoch)
                self.processes[effect.worker, effect.epoch] = process
            case SignalProcess():
                process = self.processes.get((effect.worker, effect.epoch))
                assert process is not None, "a signal to a stranger"
                if effect.signal == "kill":
                    process.killed = -9
                elif not process.stuck:
                    process.leaving = True
            case InspectModel():
                self.inspections.append(effect.model)
            case StopServing():
                self.stopped = True
            case _:
                pass

    def client_hears(self, peer: Peer, header: Header) -> None:
        """Check one message to a client against what that client asked."""
        id = getattr(header, "id", None)
        if id is None:
            return
        asked = self.asked.get(id)
        assert asked is not None, "an answer to nobody's question"
        assert asked.peer == peer, "an answer to another client"
        assert asked.answers == 0, f"{header} after the end"
        if isinstance(header, Chunk):
            assert header.seq == asked.seq, "a gap"
            asked.seq += 1
        elif isinstance(header, Done | Failed | CacheState):
            self.seen.add(f"{asked.what}:{header.code if isinstance(header, Failed) else 'done'}")
            self.answered(peer, id)
        elif isinstance(header, Accepted):
            assert (header.position == 0) == asked.leased, "told other than leased"

    def answered(self, peer: Peer, id: bytes) -> None:
        """Count a last answer."""
        asked = self.asked[id]
        assert asked.peer == peer
        asked.answers += 1
        assert asked.answers == 1, "answered twice"

    def worker_hears(self, worker: str, epoch: int, header: Header) -> None:
        """Check one message to a worker, and let it take it in."""
        process = self.processes.get((worker, epoch))
        assert process is not None, "a message to no process"
        assert process.registered, "a message to a process that never registered"
        match header:
            case Registered() | Stop():
                process.leaving = process.leaving or isinstance(header, Stop)
            case Load():
                assert not process.loads, "two loads at once in one worker"
                assert header.model not in process.held
                process.loads.append(header.model)
            case Unload():
                row = self.core.state.models[header.model]
                assert row.state is Residency.unloading
                process.unloads.append(header.model)
            case Assign():
                self.hears_assign(process, header)
            case AddCredit():
                if header.id in process.jobs:
                    job = process.jobs[header.id]
                    job[1] += header.chunks
                    assert job[1] - job[0] <= 2 * WINDOW_CHUNKS
            case Cancel():
                assert header.id not in process.cancelled, "cancelled twice"
                process.cancelled.add(header.id)
            case ReadCache() | ClearCache():
                assert header.model in process.held, "a question about no model"
                process.questions.append(header.id)
            case Ping():
                process.pings.append(header.n)
            case _:
                raise AssertionError(f"unexpected {header}")

    def hears_assign(self, process: Process, header: Assign) -> None:
        """Check a lease, and take the work in."""
        model = self.core.state.models[header.model]
        assert header.model in process.held, "work for a model that is not loaded"
        assert header.model not in process.unloads, "work for a model told to leave"
        assert not process.leaving, "work for a worker told to stop"
        assert model.state in SERVED
        if model.name in self.drained:
            request = self.core.state.requests[header.id]
            assert promised(model, request), "new work for a retired model"
        process.jobs[header.id] = [0, header.credit]
        self.asked[header.id].leased = True

    # --- invariants ----------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant of the design, after every step."""
        s = self.core.state
        queued = [r for m in s.models.values() for r in m.queue.values()]
        active = [r for w in s.workers.values() for r in w.active.values()]
        assert {r.id for r in queued} | {r.id for r in active} == set(s.requests)
        assert len(queued) + len(active) == len(s.requests)
        assert s.queued == len(queued)
        assert s.queued_bytes == sum(len(r.body) for r in queued)
        assert s.queued <= LIMITS.queued_requests
        assert all(len(m.queue) <= LIMITS.queued_requests_per_model for m in s.models.values())
        for id, asked in self.asked.items():
            if asked.what == "generate" and not asked.answers and not asked.gone:
                assert id in s.requests, "a request was forgotten"
        for worker in s.workers.values():
            self.check_worker(worker.name)
        event = self.script[-1][1]
        if not (isinstance(event, WorkerSent) and isinstance(event.header, Pong | Loaded)):
            # Only what is measured may exceed what was reckoned with.
            reserved_bytes = accounts.holdings(s, self.now).reserved_bytes()
            assert reserved_bytes <= max(POOL_BYTES, self.reserved_bytes), "more than there is"
        self.reserved_bytes = accounts.holdings(s, self.now).reserved_bytes()
        if isinstance(event, TimePassed):
            assert self.core.next_deadline() > self.now, "a state outlives its deadline"

    def check_worker(self, name: str) -> None:
        """The invariants of one worker's row."""
        s = self.core.state
        worker = s.workers[name]
        assert len(worker.active) <= LIMITS.active_requests_per_worker
        for request in worker.active.values():
            assert (request.worker, request.epoch) == (name, worker.epoch)
            assert request.phase is not Phase.queued
        alive = [p for p in self.processes.values() if p.worker == name]
        if worker.state in WITHOUT_PROCESS:
            assert not alive, f"a process of a worker that is {worker.state}"
            assert worker.pid is None
        else:
            assert [p.epoch for p in alive] == [worker.epoch]
        if worker.state not in ALIVE | {WorkerState.stopped, WorkerState.fatal}:
            assert worker.deadline is not None, f"{worker.state} without a deadline"
        if worker.state not in ALIVE:
            assert not worker.active, f"leases on a worker that is {worker.state}"
        else:
            assert (worker.state is WorkerState.busy) == bool(worker.active)
        if worker.state in (WorkerState.stopped, WorkerState.fatal):
            assert not worker.questions, f"a question to a worker that is {worker.state}"
        for model in s.models_of(worker):
            self.check_model(model.name)

    def check_model(self, name: str) -> None:
        """The invariants of one model's row."""
        s = self.core.state
        model, worker = s.models[name], s.worker_of(s.models[name])
        assert name in worker.models
        if model.state in SERVED:
            assert worker.state in ALIVE
            free = len(worker.active) < LIMITS.active_requests_per_worker
            served = [r for r in model.queue.values() if promised(model, r)]
            assert not (served and free), "a free place beside a waiting request"
        if worker.state in WITHOUT_PROCESS:
            assert model.state in OUTSIDE, f"{model.state} in a worker that is {worker.state}"
        if worker.state in (WorkerState.stopped, WorkerState.fatal):
            called = name in s.callers and worker.state is WorkerState.stopped
            waits = model.queue and model.state is not Residency.backoff
            assert called or not waits, f"someone waits for a worker that is {worker.state}"
            assert not model.retires
        if model.state is Residency.fatal:
            assert not model.wanted
        if model.state in (Residency.draining, Residency.backoff):
            assert model.deadline is not None
        if model.state is Residency.loading and model.ordered:
            assert model.deadline is not None

    # --- time ----------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """Let up to a second pass."""
        self.now += self.rng.choice((0.01, 0.1, 0.5, 1.0))
        self.give(TimePassed())

    def long_pause(self) -> None:
        """Sleep for minutes, as a laptop does: nobody may be blamed for that."""
        before = {
            name: worker.state
            for name, worker in self.core.state.workers.items()
            if worker.state in ALIVE | {WorkerState.registering}
        }
        self.pass_time()
        held = {n for n, state in before.items() if self.core.state.workers[n].state == state}
        self.now += self.rng.uniform(60, 600)
        self.give(TimePassed())
        for name in held:
            assert self.core.state.workers[name].state is not WorkerState.lost or (
                self.core.state.workers[name].reason.startswith("did not let go")
            ), "blamed for our pause"

    def inspect(self) -> None:
        """Answer one question about a model's files."""
        if self.inspections:
            model = self.inspections.popleft()
            weights = Weights(key=model, size_bytes=SIZES[model])
            facts = ModelFacts(model_type="llama", weights=(weights,), dtype="float32")
            if self.rng.random() < 0.1:
                facts = ModelFacts(unknown="not on this disk")
            self.give(ModelInspected(model=model, facts=facts))

    # --- workers -------------------------------------------------------------------------------

    def worker_moves(self) -> None:
        """Let one process do the next thing it would do."""
        if not self.processes:
            return
        process = self.rng.choice(list(self.processes.values()))
        if process.killed is not None:
            self.exit(process, process.killed)
        elif not process.started:
            self.start(process)
        elif process.leaving and self.rng.random() < 0.5:
            self.exit(process, 0)
        elif not process.stuck and not process.leaving:
            self.works(process)

    def works(self, process: Process) -> None:
        """Do what a sound process would do next."""
        if not process.registered:
            process.registered = True
            self.say(process, Register(worker="w", epoch=process.epoch, pid=7, secret=b"x" * 16))
        elif process.unloads and self.rng.random() < 0.5:
            self.unload(process)
        elif process.loads and (not process.jobs or self.rng.random() < 0.5):
            self.load(process)
        elif process.pings and not process.deaf:
            self.pong(process)
        elif process.questions and self.rng.random() < 0.5:
            self.answer_question(process)
        elif process.jobs:
            self.compute(process)

    def start(self, process: Process) -> None:
        """Start a process, or fail to."""
        if self.rng.random() < 0.02:
            del self.processes[process.worker, process.epoch]
            event = ProcessStartFailed(worker=process.worker, epoch=process.epoch, reason="no")
            self.give(event)
            return
        process.started = True
        self.give(ProcessStarted(worker=process.worker, epoch=process.epoch, pid=7))

    def exit(self, process: Process, status: int) -> None:
        """End a process."""
        del self.processes[process.worker, process.epoch]
        self.give(
            WorkerExited(
                worker=process.worker, epoch=process.epoch, status=status, log_tail="last words"
            )
        )

    def say(self, process: Process, header: Header, body: bytes = b"") -> None:
        """Send a message from a process."""
        self.give(WorkerSent(worker=process.worker, epoch=process.epoch, header=header, body=body))

    def load(self, process: Process) -> None:
        """Make progress, finish, or fail a load."""
        name, epoch, chance = process.loads[0], process.epoch, self.rng.random()
        if chance < 0.6:
            done = self.rng.randrange(100)
            self.say(process, Progress(epoch=epoch, model=name, stage="read", done=done))
            return
        process.loads.pop()
        if chance < 0.95:
            process.held.add(name)
            body = structs.replace(LOADED, memory_bytes=SIZES[name])
            self.say(process, Loaded(epoch=epoch, model=name), msgspec.msgpack.encode(body))
        else:
            codes = (ErrorCode.load_failed, ErrorCode.unsupported, ErrorCode.out_of_memory)
            code = self.rng.choice(codes)
            if process.worker != name and self.rng.random() < 0.5:
                code = ErrorCode.hook_conflict
            self.say(process, LoadFailed(epoch=epoch, model=name, code=code, message="no"))

    def unload(self, process: Process) -> None:
        """Let one model go, its load and its requests included."""
        name, epoch = process.unloads.pop(0), process.epoch
        code = ErrorCode.cancelled
        if name in process.loads:
            process.loads.remove(name)
            self.say(process, LoadFailed(epoch=epoch, model=name, code=code, message="gone"))
        process.held.discard(name)
        for id in list(process.jobs):
            request = self.core.state.requests.get(id)
            if request is None or request.model == name:
                del process.jobs[id]
                self.say(process, Failed(id=id, epoch=epoch, code=code, message="gone"))
        self.say(process, Unloaded(epoch=epoch, model=name))

    def pong(self, process: Process) -> None:
        """Answer a ping."""
        n = process.pings.popleft()
        process.steps += bool(process.jobs)
        self.say(
            process,
            Pong(
                epoch=process.epoch,
                n=n,
                steps=process.steps,
                active=0,
                memory_bytes=self.memory_of(process),
            ),
        )

    def memory_of(self, process: Process) -> int:
        """What a process holds, at times more than was reckoned with."""
        grown = self.rng.choice((0, 0, 0, 100 * MIB))
        return 100 * MIB + grown + sum(SIZES[name] for name in process.held)

    def answer_question(self, process: Process) -> None:
        """Tell about a cache, or fail to."""
        id = process.questions.popleft()
        if self.rng.random() < 0.8:
            self.say(process, CacheState(id=id, epoch=process.epoch), CACHE)
        else:
            code = ErrorCode.not_found
            self.say(process, Failed(id=id, epoch=process.epoch, code=code, message="gone"))

    def compute(self, process: Process) -> None:
        """Say the next thing about one job."""
        id = self.rng.choice(list(process.jobs))
        job, chance = process.jobs[id], self.rng.random()
        if id in process.cancelled and chance < 0.7:
            del process.jobs[id]
            failed = Failed(
                id=id, epoch=process.epoch, code=ErrorCode.cancelled, message="cancelled"
            )
            self.say(process, failed)
        elif chance < 0.15:
            del process.jobs[id]
            self.say(process, Done(id=id, epoch=process.epoch))
        elif chance < 0.18:
            del process.jobs[id]
            failed = Failed(id=id, epoch=process.epoch, code=ErrorCode.bad_request, message="b")
            self.say(process, failed)
        elif chance < 0.19:
            job[0] += 3
            self.say(process, Chunk(id=id, seq=job[0], epoch=process.epoch))
        elif job[0] < job[1]:
            job[0] += 1
            self.say(process, Chunk(id=id, seq=job[0] - 1, epoch=process.epoch))

    def crash(self) -> None:
        """Kill a process from outside."""
        started = [p for p in self.processes.values() if p.started]
        if started:
            self.exit(self.rng.choice(started), self.rng.choice((-9, -6, 0, 1, 78)))

    def hang(self) -> None:
        """Make a process stop answering, or stop moving."""
        if self.processes:
            process = self.rng.choice(list(self.processes.values()))
            process.deaf = True
            process.stuck = self.rng.random() < 0.5

    def unreachable(self) -> None:
        """Lose a connection."""
        registered = [p for p in self.processes.values() if p.registered]
        if registered:
            process = self.rng.choice(registered)
            self.give(WorkerUnreachable(worker=process.worker, epoch=process.epoch))

    def stale_message(self) -> None:
        """Deliver something of an incarnation that is gone, or of no known request."""
        worker = self.rng.choice(list(self.core.state.workers))
        old = max(1, self.core.state.workers[worker].epoch - self.rng.randrange(1, 3))
        if (worker, old) in self.processes:
            return
        id = self.rng.choice(list(self.asked) or [b"?" * 16])
        header = self.rng.choice(
            (
                Chunk(id=id, seq=0, epoch=old),
                Done(id=id, epoch=old),
                Loaded(epoch=old, model=self.rng.choice(MODELS)),
                Register(worker=worker, epoch=old, pid=1, secret=b"x" * 16),
            )
        )
        self.give(
            WorkerSent(worker=worker, epoch=old, header=header, body=msgspec.msgpack.encode(LOADED))
        )
        self.give(WorkerExited(worker=worker, epoch=old, status=0))

    # --- clients -------------------------------------------------------------------------------

    def new_peer(self, door: str) -> Peer:
        """A client nobody has seen before."""
        return Peer("control" if door == "control" else "requests", self.rng.randbytes(5))

    def ask(self, peer: Peer, what: str) -> bytes:
        """Remember a question before it is asked."""
        id = self.rng.randbytes(16)
        self.asked[id] = Asked(peer, what)
        return id

    def generate(self) -> None:
        """Ask for a completion, at times twice with one id, at times of an unknown model."""
        peer = self.rng.choice(self.peers)
        id = self.ask(peer, "generate")
        model = self.rng.choice((*MODELS, "nobody") if self.rng.random() < 0.05 else MODELS)
        deadline_ms = self.rng.choice((None, None, 500, 20_000))
        header = Generate(id=id, model=model, credit=4, deadline_ms=deadline_ms)
        self.give(ClientSent(peer=peer, header=header, body=b"prompt"))
        if self.rng.random() < 0.05 and not self.asked[id].answers:
            self.give(ClientSent(peer=self.rng.choice(self.peers), header=header, body=b"again"))

    def client_reads(self) -> None:
        """Grant credit, rarely far too much."""
        open_ids = [i for i, a in self.asked.items() if a.what == "generate" and not a.answers]
        if open_ids:
            id = self.rng.choice(open_ids)
            chunks = 64 if self.rng.random() < 0.05 else self.rng.randrange(1, 8)
            header = AddCredit(id=id, chunks=chunks)
            self.give(ClientSent(peer=self.asked[id].peer, header=header))

    def cancel(self) -> None:
        """Cancel something, ended or not, at times twice."""
        ids = [i for i, a in self.asked.items() if a.what == "generate"][-20:]
        if ids:
            id = self.rng.choice(ids)
            for _ in range(self.rng.choice((1, 1, 2))):
                self.give(ClientSent(peer=self.asked[id].peer, header=Cancel(id=id)))

    def foreign_cancel(self) -> None:
        """Cancel another client's request: nothing may happen to it."""
        ids = list(self.core.state.requests)
        if ids:
            id = self.rng.choice(ids)
            before = self.core.state.requests[id].phase
            self.give(ClientSent(peer=Peer("requests", b"thief"), header=Cancel(id=id)))
            assert self.core.state.requests[id].phase is before

    def status(self) -> None:
        """Look: nothing may change by that."""
        before = [
            (m.name, m.state, m.deadline, m.idle_since) for m in self.core.state.models.values()
        ]
        self.give(ClientSent(peer=self.owner, header=Status(id=self.ask(self.owner, "status"))))
        after = [
            (m.name, m.state, m.deadline, m.idle_since) for m in self.core.state.models.values()
        ]
        assert before == after

    def spawn(self) -> None:
        """Command a load."""
        model = self.rng.choice(MODELS)
        group = self.rng.choice((None, None, model, "g", "h"))
        header = Spawn(id=self.ask(self.owner, "spawn"), model=model, group=group)
        self.give(ClientSent(peer=self.owner, header=header))

    def retire(self) -> None:
        """Command an unload."""
        model, now = self.rng.choice(MODELS), self.rng.random() < 0.4
        id = self.ask(self.owner, "retire")
        self.give(ClientSent(peer=self.owner, header=Retire(id=id, model=model, now=now)))

    def ask_cache(self) -> None:
        """Ask for the state of a cache, or command to empty it."""
        model, kind = self.rng.choice(MODELS), self.rng.choice((ReadCache, ClearCache))
        header = kind(id=self.ask(self.owner, "cache"), model=model)
        self.give(ClientSent(peer=self.owner, header=header))

    def cancel_command(self) -> None:
        """Wait no longer for a command."""
        ids = [i for i, a in self.asked.items() if a.peer == self.owner][-5:]
        if ids:
            header = Cancel(id=self.rng.choice(ids))
            self.give(ClientSent(peer=self.owner, header=header))

    def client_vanishes(self) -> None:
        """Take a client away."""
        index = self.rng.randrange(len(self.peers))
        peer, self.peers[index] = self.peers[index], self.new_peer("requests")
        for asked in self.asked.values():
            asked.gone = asked.gone or asked.peer == peer
        self.give(ClientVanished(peer=peer))

    def client_overflows(self) -> None:
        """Have a client not read."""
        self.give(ClientOverflowed(peer=self.rng.choice(self.peers)))

    # --- ends ----------------------------------------------------------------------------------

    def settle_down(self, steps: int = 4000) -> None:
        """No new questions and no new faults: everything asked must come to its end."""
        self.calm = True
        for _ in range(steps):
            self.step()
            if not self.core.state.requests and not self.open_questions():
                return
        raise AssertionError(f"still open: {self.open_questions()}")

    def open_questions(self) -> list[Asked]:
        """What was asked by someone still there, and not answered."""
        return [a for a in self.asked.values() if not a.answers and not a.gone]

    def shut_down(self, *, by_signal: bool) -> None:
        """Stop the daemon, pressing at times, until it says it is done."""
        self.calm = True
        if by_signal:
            self.give(ShutdownAsked())
        else:
            id = self.ask(self.owner, "shutdown")
            self.give(ClientSent(peer=self.owner, header=Shutdown(id=id)))
        for _ in range(4000):
            self.step()
            if self.stopped:
                break
            if by_signal and self.rng.random() < 0.02:
                self.give(ShutdownAsked())
        assert self.stopped, "the daemon does not stop"
        assert not self.processes, "a process is left behind"
        assert not self.open_questions(), "stopped without an answer"
