"""One core, and around it everything it is told of and everything it commands."""

from __future__ import annotations

import random
from collections.abc import Callable

from dflashd.protocol.messages import Reloaded
from dflashd.supervisor.core.effects import (
    AdoptConfig,
    Effect,
    InspectModel,
    Note,
    ReadConfig,
    SendMetrics,
    SendSnapshot,
    SendToClient,
    SendToWorker,
    SignalProcess,
    SpawnProcess,
    StartWatch,
    StopServing,
)
from dflashd.supervisor.core.events import Event, ServingBegan, ShutdownAsked, TimePassed
from dflashd.supervisor.core.life import Residency
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.snapshot import Identity
from dflashd.supervisor.core.state import State

from .clients import Clients
from .configurations import Configurations
from .faults import Faults
from .inspections import Inspections
from .invariants import Invariants
from .processes import Processes
from .script import Step
from .setting import FILLING, LIMITS, MODELS, POOL_BYTES, sections
from .wishes import Wishes

QUIET = {
    "let_time_pass": 6.0,
    "process_moves": 24.0,
    "client_reads": 5.0,
    "finish_reading": 2.0,
    "finish_inspection": 3.0,
}
"""What goes on by itself, and how often: it ends whatever was begun."""

LOUD = {
    **QUIET,
    "generate": 8.0,
    "cancel": 1.5,
    "cancel_foreign": 0.3,
    "send_garbage": 0.2,
    "look": 0.5,
    "spawn": 1.0,
    "retire": 0.5,
    "pin": 0.3,
    "ask_cache": 0.7,
    "cancel_command": 0.2,
    "edit": 0.5,
    "reload": 0.5,
    "read_stale": 0.05,
    "vanish": 0.4,
    "overflow": 0.1,
    "crash": 0.4,
    "hang": 0.3,
    "say_stale": 0.5,
    "sleep": 0.05,
    "rush": 0.01,
    "disconnect": 0.1,
}
"""The same among requests, commands and faults."""

RUSH_S = 90.0
BUSY_REQUESTS = 3
"""Of a model that is kept busy: when one ends, others run or wait."""

PATIENCE_STEPS = 4000
"""Quiet steps within which everything must have come to its end."""


class World:
    """Takes steps; a broken promise is an AssertionError at the step that broke it."""

    def __init__(self) -> None:
        self.chance = random.Random()
        self.now = 100.0
        self.events: list[tuple[float, Event]] = []
        self.stopped = False
        core_chance = random.Random(0)
        identity = Identity(instance="sim", version="0", pid=1, started_at=self.now)
        self.core = Core(LIMITS, sections(), identity, core_chance.random, pool_bytes=POOL_BYTES)
        self.drained: set[str] = set()
        self.wishes = Wishes()
        self.clients = Clients(self)
        self.processes = Processes(self)
        self.configurations = Configurations(self)
        self.inspections = Inspections(self)
        self.invariants = Invariants(self)
        faults = Faults(self)
        parts = (self, self.clients, self.processes, self.configurations, self.inspections, faults)
        self.actions: dict[str, Callable[[], None]] = {
            name: getattr(part, name)
            for part in parts
            for name in (*LOUD, "settle", "shut_down")
            if hasattr(part, name)
        }
        self.give(ServingBegan())

    @property
    def state(self) -> State:
        """The core's tables, to be looked at only."""
        return self.core.state

    def take(self, step: Step) -> None:
        """Do one step, with chances that depend on its seed only."""
        if not self.stopped:
            self.chance.seed(step.seed)
            self.actions[step.action]()

    def give(self, event: Event) -> None:
        """Hand one event to the core, obey its effects, check every invariant."""
        self.events.append((self.now, event))
        models = self.state.models.values()
        self.drained = {model.name for model in models if model.state is Residency.draining}
        early = isinstance(event, TimePassed) and self.now < self.core.next_deadline()
        # Who waits for memory is looked at with each tick: workers may have grown since the last.
        early = early and not self.state.callers
        effects = self.core.handle(event, self.now)
        did = [e for e in effects if not (isinstance(e, Note) and e.name == "paused")]
        assert not (early and did), f"time did something before it was due: {did[0]}"
        for effect in effects:
            self.obey(effect)
        self.invariants.check(event)
        self.configurations.check()

    def obey(self, effect: Effect) -> None:
        """Let the world react to one effect, checking what may be checked at once."""
        match effect:
            case SendToClient():
                self.clients.hear(effect.peer, effect.header)
                if isinstance(effect.header, Reloaded):
                    self.configurations.told(effect.body)
            case SendSnapshot() | SendMetrics() | StartWatch():
                self.clients.shown(effect)
            case SendToWorker():
                self.processes.hear(effect)
                self.configurations.ordered(effect)
            case Note(name="model_evicted"):
                self.invariants.evicted(effect.fields)
            case SpawnProcess() | SignalProcess():
                self.processes.obey(effect)
            case InspectModel():
                self.inspections.begin(effect)
            case ReadConfig() | AdoptConfig():
                self.configurations.obey(effect)
            case StopServing():
                self.stopped = True
            case _:
                pass

    # --- time and ends -------------------------------------------------------------------------

    def let_time_pass(self) -> None:
        """Let up to a second pass."""
        self.now += self.chance.choice((0.01, 0.1, 0.5, 1.0))
        self.give(TimePassed())

    def rush(self) -> None:
        """Keep two models busy for longer than anybody has to wait behind them; all are asked for.

        Neither is ever idle: only who is made to go makes room.
        """
        busy, end = FILLING, self.now + RUSH_S
        for model in MODELS:
            self.clients.ask_for(model)

        def over() -> bool:
            for model in busy:
                asked = [r for r in self.state.requests.values() if r.model == model]
                if len(asked) < BUSY_REQUESTS:
                    self.clients.ask_for(model)
            return self.now >= end

        self._go_on_until(over)

    def settle(self) -> None:
        """Nobody asks and nothing fails any more: everything asked must come to its end."""
        self._go_on_until(lambda: not (self.state.requests or self.clients.open))
        assert not self.clients.open, f"never answered: {self.clients.open_questions()}"
        assert not self.state.requests, "a request that never ends"

    def shut_down(self) -> None:
        """Stop the daemon, pressing at times, until it says that it is done."""
        if self.chance.random() < 0.5:
            self.clients.ask_shutdown()
        else:
            self.give(ShutdownAsked())
            for _ in range(self.chance.choice((0, 0, 1, 2))):
                self._go_on_until(lambda: False, self.chance.randrange(100))
                if not self.stopped:
                    self.give(ShutdownAsked())
        self._go_on_until(lambda: self.stopped)
        assert self.stopped, "the daemon does not stop"
        assert not self.processes.live, "a process is left behind"
        assert not self.clients.open, "stopped without an answer"

    def _go_on_until(self, over: Callable[[], bool], steps: int = PATIENCE_STEPS) -> None:
        names, weights = list(QUIET), list(QUIET.values())
        for _ in range(steps):
            if over() or self.stopped:
                return
            self.actions[self.chance.choices(names, weights)[0]]()
