"""Every promise of the core's design, looked at after each event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from dflashd.protocol.messages import Loaded, Pong
from dflashd.supervisor.core import accounts
from dflashd.supervisor.core.events import Event, TimePassed, WorkerSent
from dflashd.supervisor.core.life import (
    ALIVE,
    OUTSIDE,
    SERVED,
    WITHOUT_PROCESS,
    Phase,
    Residency,
    WorkerState,
)
from dflashd.supervisor.core.records import Model, Worker
from dflashd.supervisor.core.snapshot import MODEL_WORDS, word

from .setting import LIMITS, MODELS, POOL_BYTES

if TYPE_CHECKING:
    from .world import World

TICK_S = 1.1
"""Time passes in steps of up to a second: a limit is noticed at the first step after it."""

What = WorkerState | Residency | Phase | Literal["stalled", "deaf"]
"""A state, or a trouble. States of one name are equal whatever they are of."""

LONGEST_S: dict[What, float] = {
    WorkerState.spawning: LIMITS.spawn_timeout_s,
    WorkerState.registering: LIMITS.register_timeout_s,
    WorkerState.backoff: LIMITS.backoff_limit_s,
    Residency.draining: LIMITS.drain_timeout_s,
    Residency.backoff: LIMITS.backoff_limit_s,
    "stalled": LIMITS.load_stall_s,
    Residency.unloading: max(LIMITS.unload_timeout_s, LIMITS.load_stall_s),
    "deaf": LIMITS.loading_pong_timeout_s,
    Phase.cancelling: LIMITS.cancel_timeout_s,
    Phase.ended: LIMITS.release_timeout_s,
}
"""How long a row may stay as it is. Measured here, not read from the core's own deadlines."""


Key = tuple[str | bytes, int, What]
"""A row as long as it stays as it is: whose, which incarnation, in which state."""


class Invariants:
    """Compares the core's tables with each other, with the world, and with the clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[Key, float] = {}
        self._reserved_bytes = 0
        self._counted_before: list[object] = []
        self._outside: set[str] = set(MODELS)

    def check(self, event: Event) -> None:
        """All of them, after ``event``."""
        self._check_books()
        for worker in self._world.state.workers.values():
            self._check_worker(worker)
        for model in self._world.state.models.values():
            self._check_model(model)
        self._check_wishes()
        self._check_memory(event)
        self._check_clocks(moved=isinstance(event, TimePassed))

    def forgive(self, gap_s: float) -> None:
        """Nothing happened for so long that could have ended anything."""
        self._since = {key: since + gap_s for key, since in self._since.items()}

    def picture(self) -> str:
        """All tables, to see that nothing has changed."""
        s = self._world.state
        rows = (*s.models.values(), *s.workers.values(), *s.requests.values())
        return repr([[getattr(row, name) for name in row.__slots__] for row in rows])

    def _check_books(self) -> None:
        s = self._world.state
        queued = [r for m in s.models.values() for r in m.queue.values()]
        active = [r for w in s.workers.values() for r in w.active.values()]
        assert {r.id for r in queued} | {r.id for r in active} == s.requests.keys()
        assert len(queued) + len(active) == len(s.requests), "a request in two places"
        assert s.queued == len(queued)
        assert s.queued_bytes == sum(len(r.body) for r in queued)
        assert s.queued <= LIMITS.queued_requests
        assert len(s.shares) == len({r.client for r in queued}), "a share of nobody"
        for id, asked in self._world.clients.open.items():
            assert asked.what != "generate" or id in s.requests, "a request was forgotten"

    def _check_worker(self, worker: Worker) -> None:
        assert len(worker.active) <= LIMITS.active_requests_per_worker
        for request in worker.active.values():
            assert (request.worker, request.epoch) == (worker.name, worker.epoch)
            assert request.phase is not Phase.queued
        live = self._world.processes.live
        alive = [epoch for name, epoch in live if name == worker.name]
        if worker.state in WITHOUT_PROCESS:
            assert not alive, f"a process of a worker that is {worker.state}"
            assert worker.pid is None
            assert not worker.questions, f"a question to a worker that is {worker.state}"
        else:
            assert alive == [worker.epoch], "the table is not what lives"
        if worker.state in ALIVE:
            assert (worker.state is WorkerState.busy) == bool(worker.active)
        else:
            assert not worker.active, f"leases on a worker that is {worker.state}"
            endless = worker.state in (WorkerState.stopped, WorkerState.fatal)
            assert endless or worker.deadline is not None, f"{worker.state} without a deadline"

    def _check_model(self, model: Model) -> None:
        s = self._world.state
        worker = s.worker_of(model)
        assert model.name in worker.models
        assert word(model, worker, len(worker.active)) in MODEL_WORDS
        assert len(model.queue) <= LIMITS.queued_requests_per_model
        if model.state in SERVED:
            assert worker.state in ALIVE
            last = model.leaving
            served = any(last is None or r.serial <= last for r in model.queue.values())
            free = len(worker.active) < LIMITS.active_requests_per_worker
            assert not (served and free), "a free place beside a waiting request"
        if worker.state in WITHOUT_PROCESS:
            assert model.state in OUTSIDE, f"{model.state} in a worker that is {worker.state}"
        if worker.state in (WorkerState.stopped, WorkerState.fatal):
            waits = model.queue and model.state is not Residency.backoff
            called = model.name in s.callers and worker.state is WorkerState.stopped
            assert called or not waits, f"somebody waits for a worker that is {worker.state}"
            assert not model.retires
        if model.state is Residency.fatal:
            assert not model.wanted, "somebody waits for a model that was given up"
        ordered = model.state is Residency.loading and model.ordered
        if ordered or model.state in (Residency.draining, Residency.backoff):
            assert model.deadline is not None, f"{model.state} without a deadline"

    def evicted(self, fields: Mapping[str, str | float]) -> None:
        """A model goes without an operator's word: not one that is kept, or is computing."""
        model = self._world.state.models[str(fields["model"])]
        assert not model.pinned, "a pinned model was evicted"
        if fields["cause"] == "waited_for_too_long":
            return  # it may compute: it is drained
        jobs = [job for p in self._world.processes.live.values() for job in p.jobs.values()]
        assert all(job.model != model.name for job in jobs), "evicted while it computes"
        assert not model.queue, "evicted though somebody waits for it"
        if fields["cause"] == "idle":
            idle_s = self._world.now - self._world.processes.used_at[model.name]
            assert idle_s >= (model.settings.idle_ttl_s or 0), "unloaded before its time"

    def _check_wishes(self) -> None:
        """Nobody is beside another or loaded who was not wished to be."""
        wishes, s = self._world.wishes, self._world.state
        for worker in s.workers.values():
            assert wishes.may_share(worker.models), "beside another unasked, in the tables"
        for process in self._world.processes.live.values():
            together = (*process.held, *process.loads)
            assert wishes.may_share(together), "beside another unasked, in a process"
        begun = [m for m in s.models.values() if m.name in self._outside and m.state not in OUTSIDE]
        for model in begun:
            waited_for = model.queue or model.spawns
            assert waited_for or wishes.may_load(model.name), "an operator's stop was undone"
        self._outside = {m.name for m in s.models.values() if m.state in OUTSIDE}

    def _check_memory(self, event: Event) -> None:
        """Only what is measured may exceed what was reckoned with."""
        before_bytes = self._reserved_bytes
        s, now = self._world.state, self._world.now
        counted = self._counted()
        if counted == self._counted_before:
            return
        self._counted_before = counted
        self._reserved_bytes = accounts.holdings(s, now).reserved_bytes()
        measured = isinstance(event, WorkerSent) and isinstance(event.header, Pong | Loaded)
        most_bytes = max(POOL_BYTES, before_bytes)
        assert measured or self._reserved_bytes <= most_bytes, "more memory than there is"

    def _deaf_keys(self) -> Iterator[Key]:
        """Workers that answer no ping, and are not given up yet."""
        for (name, epoch), process in self._world.processes.live.items():
            if process.deaf and self._world.state.workers[name].state in ALIVE:
                yield (name, epoch, "deaf")

    def _counted(self) -> list[object]:
        """All that memory is reckoned from."""
        s = self._world.state
        rows: list[object] = [
            (m.worker, m.state, m.facts, m.loaded, m.guess_bytes) for m in s.models.values()
        ]
        rows += [(w.state, w.memory_bytes, w.settled_bytes) for w in s.workers.values()]
        return rows

    def _model_keys(self, model: Model) -> Iterator[Key]:
        """A model in its state; where another limit is its worker's, not at all."""
        worker = self._world.state.worker_of(model)
        if model.state is Residency.loading and model.ordered:  # progress begins it anew
            yield (f"{model.name} {model.stage} {model.stage_done}", worker.epoch, "stalled")
        elif model.state is not Residency.unloading or worker.state in ALIVE:
            yield (model.name, 0, model.state)

    def _check_clocks(self, *, moved: bool) -> None:
        now, s = self._world.now, self._world.state
        since: dict[Key, float] = {}
        rows: list[Key] = [(w.name, w.epoch, w.state) for w in s.workers.values()]
        rows += [key for m in s.models.values() for key in self._model_keys(m)]
        rows += list(self._deaf_keys())
        rows += [(r.id, r.epoch, r.phase) for r in s.requests.values()]
        for key in rows:
            if key[2] in LONGEST_S:
                since[key] = self._since.get(key, now)
        self._since = since
        if not moved:
            return
        assert self._world.core.next_deadline() > now, "a deadline is over"
        for key, began_s in since.items():
            longest_s = LONGEST_S[key[2]]
            assert now - began_s <= longest_s + TICK_S, f"{key[2]} for too long"
        for request in s.requests.values():
            if request.phase is Phase.queued and request.deadline_at is not None:
                assert request.deadline_at > now, "waits past its deadline"
