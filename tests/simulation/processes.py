"""Simulated worker processes: what they are told, and what sound ones do about it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    WINDOW_CHUNKS,
    AddCredit,
    Assign,
    CacheState,
    Cancel,
    Chunk,
    ClearCache,
    Done,
    Failed,
    Header,
    Load,
    LoadBody,
    Loaded,
    LoadFailed,
    Ping,
    Pong,
    Progress,
    ReadCache,
    Register,
    Registered,
    Stop,
    Unload,
    Unloaded,
)
from dflashd.supervisor.core.effects import SendToWorker, SignalProcess, SpawnProcess
from dflashd.supervisor.core.events import (
    ProcessStarted,
    ProcessStartFailed,
    WorkerExited,
    WorkerSent,
)
from dflashd.supervisor.core.facts import PROCESS_BYTES
from dflashd.supervisor.core.life import SERVED, Residency

from .setting import CACHE, MIB, POOL_BYTES, loaded, size_bytes

if TYPE_CHECKING:
    from .world import World

LOAD_FAILURES = (ErrorCode.load_failed, ErrorCode.unsupported, ErrorCode.out_of_memory)


@dataclass(slots=True, eq=False)
class Job:
    """One request in a process."""

    model: str
    credit: int
    said: int = 0


@dataclass(slots=True, eq=False)
class Process:
    """One simulated worker process. ``deaf``: answers no ping; ``stuck``: does nothing at all.

    Of ``guessed`` models nothing was known when they were loaded.
    """

    worker: str
    epoch: int
    started: bool = False
    registered: bool = False
    loads: list[str] = field(default_factory=list[str])
    unloads: list[str] = field(default_factory=list[str])
    held: set[str] = field(default_factory=set[str])
    bodies: dict[str, LoadBody] = field(default_factory=dict[str, LoadBody])
    guessed: set[str] = field(default_factory=set[str])
    killed: bool = False
    leaving: bool = False
    deaf: bool = False
    stuck: bool = False
    steps: int = 0
    questions: deque[bytes] = field(default_factory=deque[bytes])
    pings: deque[int] = field(default_factory=deque[int])
    jobs: dict[bytes, Job] = field(default_factory=dict[bytes, Job])
    cancelled: set[bytes] = field(default_factory=set[bytes])


class Processes:
    """All processes; every order to one of them is held against what it may be told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self.live: dict[tuple[str, int], Process] = {}
        self.used_at: dict[str, float] = {}
        """When each model was loaded, or last ended a request."""

    # --- what they are told ----------------------------------------------------------------------

    def obey(self, effect: SpawnProcess | SignalProcess) -> None:
        """A process is to begin, or to end."""
        if isinstance(effect, SpawnProcess):
            self.begin(effect.worker, effect.epoch)
        else:
            self.signalled(effect.worker, effect.epoch, effect.signal)

    def begin(self, worker: str, epoch: int) -> None:
        """A process is to be started."""
        alive = [process for process in self.live.values() if process.worker == worker]
        assert not alive, "a second process of one worker"
        self.live[worker, epoch] = Process(worker, epoch)

    def signalled(self, worker: str, epoch: int, signal: Literal["terminate", "kill"]) -> None:
        """A process is signalled."""
        process = self.live.get((worker, epoch))
        assert process is not None, "a signal to a stranger"
        if signal == "kill":
            process.killed = True
        elif not process.stuck:
            process.leaving = True

    def hear(self, effect: SendToWorker) -> None:
        """Check one message to a worker, and let it take it in."""
        header = effect.header
        process = self.live.get((effect.worker, effect.epoch))
        assert process is not None, "a message to no process"
        assert process.registered, "a message to a process that never registered"
        match header:
            case Registered():
                pass
            case Stop():
                process.leaving = True
            case Load():
                self._hear_load(process, header.model, effect.body)
            case Unload():
                row = self._world.state.models[header.model]
                assert row.state is Residency.unloading, "unloaded without a fence"
                process.unloads.append(header.model)
            case Assign():
                self._hear_assign(process, header)
            case AddCredit() if header.id in process.jobs:
                job = process.jobs[header.id]
                job.credit += header.chunks
                assert job.credit - job.said <= 2 * WINDOW_CHUNKS, "credit without a bound"
            case Cancel():
                assert header.id not in process.cancelled, "cancelled twice"
                process.cancelled.add(header.id)
            case ReadCache() | ClearCache():
                assert header.model in process.held, "a question about no model"
                process.questions.append(header.id)
            case Ping():
                process.pings.append(header.n)
            case _:
                assert isinstance(header, AddCredit), f"unexpected {header}"

    def _hear_load(self, process: Process, name: str, body: object) -> None:
        assert isinstance(body, LoadBody)
        assert not process.loads, "two loads at once in one worker"
        assert name not in process.held, "loaded twice"
        facts = self._world.state.models[name].facts
        process.loads.append(name)
        process.bodies[name] = body
        if facts is None or facts.unknown:
            process.guessed.add(name)
        foreseen = {*process.held, name} - process.guessed
        assert not self._conflicts(process, name, foreseen), "loaded into a conflict foreseen"
        assert self.needed_bytes() <= POOL_BYTES, "two loads that do not fit together"

    def _conflicts(self, process: Process, name: str, among: set[str]) -> set[str]:
        """Those with which a model cannot be in one process, if they stay."""
        backend = process.bodies[name].backend
        others = among - {*process.unloads, name} if name in among else set[str]()
        return {other for other in others if process.bodies[other].backend != backend}

    def needed_bytes(self) -> int:
        """What all models need whose sizes were known, and their processes."""
        needed = 0
        for process in self.live.values():
            models = {*process.held, *process.loads} - process.guessed
            needed += sum(map(size_bytes, models)) + (PROCESS_BYTES if models else 0)
        return needed

    def _hear_assign(self, process: Process, header: Assign) -> None:
        model = self._world.state.models[header.model]
        assert header.model in process.held, "work for a model that is not loaded"
        assert header.model not in process.unloads, "work for a model told to leave"
        assert not process.leaving, "work for a worker told to stop"
        assert model.state in SERVED, f"work for a model that is {model.state}"
        if header.model in self._world.drained:
            request = self._world.state.requests[header.id]
            assert request.serial <= (model.leaving or 0), "new work for a retired model"
        process.jobs[header.id] = Job(header.model, header.credit)
        self._world.clients.leased(header.id)

    # --- what they do ----------------------------------------------------------------------------

    def process_moves(self) -> None:
        """Let one process do the next thing it would do."""
        if not self.live:
            return
        process = self._chance.choice(list(self.live.values()))
        if process.killed:
            self.exit(process, -9)
        elif not process.started:
            self._start(process)
        elif process.leaving and self._chance.random() < 0.5:
            self.exit(process, 0)
        elif not process.stuck and not process.leaving:
            self._work(process)

    def exit(self, process: Process, status: int) -> None:
        """End a process."""
        del self.live[process.worker, process.epoch]
        self._world.give(
            WorkerExited(
                worker=process.worker, epoch=process.epoch, status=status, log_tail="last words"
            )
        )

    def _start(self, process: Process) -> None:
        worker, epoch = process.worker, process.epoch
        if self._chance.random() < 0.02:
            del self.live[worker, epoch]
            self._world.give(ProcessStartFailed(worker=worker, epoch=epoch, reason="no"))
            return
        process.started = True
        self._world.give(ProcessStarted(worker=worker, epoch=epoch, pid=7))

    def _work(self, process: Process) -> None:
        half = self._chance.random() < 0.5
        if not process.registered:
            process.registered = True
            self._say(process, Register(worker="w", epoch=process.epoch, pid=7, secret=b"x" * 16))
        elif process.unloads and half:
            self._unload(process)
        elif process.loads and (half or not process.jobs):
            self._load(process)
        elif process.pings and not process.deaf:
            self._pong(process)
        elif process.questions and half:
            self._answer_question(process)
        elif process.jobs:
            self._compute(process)

    def _load(self, process: Process) -> None:
        name, epoch, chance = process.loads[0], process.epoch, self._chance.random()
        if chance < 0.6:
            done = self._chance.randrange(100)
            self._say(process, Progress(epoch=epoch, model=name, stage="read", done=done))
            return
        process.loads.pop()
        met = bool(self._conflicts(process, name, {*process.held, name}))
        if chance < 0.95 and not met:
            process.held.add(name)
            self.used_at[name] = self._world.now
            self._say(process, Loaded(epoch=epoch, model=name), loaded(name))
            return
        process.guessed.discard(name)
        code = ErrorCode.hook_conflict if met else self._chance.choice(LOAD_FAILURES)
        self._say(process, LoadFailed(epoch=epoch, model=name, code=code, message="no"))
        row = self._world.state.models.get(name)
        if met and row is not None and row.settings.placement == "auto":
            assert row.state is not Residency.fatal, "given up for others in its worker"

    def _unload(self, process: Process) -> None:
        name, epoch = process.unloads.pop(0), process.epoch
        code = ErrorCode.cancelled
        if name in process.loads:
            process.loads.remove(name)
            self._say(process, LoadFailed(epoch=epoch, model=name, code=code, message="gone"))
        process.held.discard(name)
        process.guessed.discard(name)
        for id in [id for id, job in process.jobs.items() if job.model == name]:
            del process.jobs[id]
            self._say(process, Failed(id=id, epoch=epoch, code=code, message="gone"))
        self._say(process, Unloaded(epoch=epoch, model=name))

    def _pong(self, process: Process) -> None:
        n = process.pings.popleft()
        process.steps += bool(process.jobs)
        self._say(
            process,
            Pong(
                epoch=process.epoch,
                n=n,
                steps=process.steps,
                active=len(process.jobs),
                memory_bytes=self._memory_bytes(process),
            ),
        )

    def _memory_bytes(self, process: Process) -> int:
        """What a process holds, at times more than was reckoned with."""
        grown = self._chance.choice((0, 0, 0, 100 * MIB))
        return 100 * MIB + grown + sum(map(size_bytes, process.held))

    def _answer_question(self, process: Process) -> None:
        id, epoch = process.questions.popleft(), process.epoch
        if self._chance.random() < 0.8:
            self._say(process, CacheState(id=id, epoch=epoch), CACHE)
        else:
            code = ErrorCode.not_found
            self._say(process, Failed(id=id, epoch=epoch, code=code, message="gone"))

    def _compute(self, process: Process) -> None:
        id = self._chance.choice(list(process.jobs))
        job, epoch, chance = process.jobs[id], process.epoch, self._chance.random()
        if id in process.cancelled and chance < 0.7:
            self._fail(process, id, ErrorCode.cancelled)
        elif chance < 0.15:
            self._end(process, Done(id=id, epoch=epoch))
        elif chance < 0.18:
            code = self._chance.choice((ErrorCode.bad_request, ErrorCode.out_of_memory))
            self._fail(process, id, code)
        elif chance < 0.19:
            job.said += 3
            self._say(process, Chunk(id=id, seq=job.said, epoch=epoch))
        elif job.said < job.credit:
            job.said += 1
            self._say(process, Chunk(id=id, seq=job.said - 1, epoch=epoch))

    def _fail(self, process: Process, id: bytes, code: ErrorCode) -> None:
        self._end(process, Failed(id=id, epoch=process.epoch, code=code, message=str(code)))

    def _end(self, process: Process, header: Done | Failed) -> None:
        assert header.id is not None
        self.used_at[process.jobs.pop(header.id).model] = self._world.now
        self._say(process, header)

    def _say(self, process: Process, header: Header, body: bytes = b"") -> None:
        worker, epoch = process.worker, process.epoch
        self._world.give(WorkerSent(worker=worker, epoch=epoch, header=header, body=body))
