"""What goes wrong in the simulated world: crashes, hangs, stale messages, sleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflashd.protocol.messages import Chunk, Done, Loaded, Pong, Register
from dflashd.supervisor.core.events import (
    TimePassed,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from dflashd.supervisor.core.life import ALIVE, WorkerState

from .setting import MODELS, loaded

if TYPE_CHECKING:
    from .world import World

STATUSES = (-9, -9, -9, -6, -6, 0, 0, 1, 1, 78)


class Faults:
    """Each is one step, at a moment of chance's choosing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance

    def crash(self) -> None:
        """End a process from outside, in whatever state."""
        started = [p for p in self._world.processes.live.values() if p.started]
        if started:
            process = self._chance.choice(started)
            self._world.processes.exit(process, self._chance.choice(STATUSES))

    def hang(self) -> None:
        """Make a process stop answering, or stop doing anything."""
        live = self._world.processes.live
        if live:
            busy = [process for process in live.values() if process.jobs]
            process = self._chance.choice(busy or list(live.values()))
            process.deaf = True
            process.stuck = self._chance.random() < 0.5

    def disconnect(self) -> None:
        """Have a message to a worker fail."""
        registered = [p for p in self._world.processes.live.values() if p.registered]
        if registered:
            process = self._chance.choice(registered)
            self._world.give(WorkerUnreachable(worker=process.worker, epoch=process.epoch))

    def say_stale(self) -> None:
        """Deliver something of an incarnation that is gone, or of no known request."""
        world = self._world
        if not world.state.workers:
            return
        worker = self._chance.choice(list(world.state.workers))
        old = max(1, world.state.workers[worker].epoch - self._chance.randrange(1, 3))
        if (worker, old) in world.processes.live:
            return
        id = self._chance.choice([*list(world.clients.asked)[-10:], b"?" * 16])
        header = self._chance.choice(
            (
                Chunk(id=id, seq=0, epoch=old),
                Done(id=id, epoch=old),
                Loaded(epoch=old, model=self._chance.choice(MODELS)),
                Pong(epoch=old, n=1, steps=1, active=1, memory_bytes=1),
                Register(worker=worker, epoch=old, pid=1, secret=b"x" * 16),
            )
        )
        world.give(WorkerSent(worker=worker, epoch=old, header=header, body=loaded("a")))
        world.give(WorkerExited(worker=worker, epoch=old, status=0))

    def sleep(self) -> None:
        """Stand still for minutes, as a laptop does: nobody may be blamed for that."""
        world = self._world
        world.let_time_pass()
        before = {
            name: worker.epoch
            for name, worker in world.state.workers.items()
            if worker.state in ALIVE | {WorkerState.registering}
        }
        gap_s = self._chance.uniform(60, 600)
        world.now += gap_s
        world.invariants.forgive(gap_s)
        world.give(TimePassed())
        for name, epoch in before.items():
            worker = world.state.workers.get(name)
            if worker is not None and worker.epoch == epoch:
                blamed = worker.state is WorkerState.lost
                assert not blamed, f"blamed for our sleep: {worker.reason}"
