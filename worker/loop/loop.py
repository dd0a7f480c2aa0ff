"""The engine loop: one step at a time, for all requests of all models of this process.

A step is one prefill chunk, one decode cycle or one load. Commands (``load``, ``assign``,
``cancel`` …) take effect at once, so they must come from the thread that calls ``step``: either
between two steps, or out of ``intake``, which the loop calls before each step and at each progress
of a load. The loop knows neither sockets nor mlx: a worker process drives it from a thread, a host
application may drive it from its own.

A load's files are fetched and read by ``aside``, while the loop goes on. The rest of the load runs
to its end inside one ``step``. At each of its progress calls the loop takes commands
in and lets requests of other models run for as long as the load has run since the last one: both
go on, at about half speed, with pauses as long as the load is silent.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.errors import DflashError
from ...protocol.messages import LoadBody
from ..engine.border import Engine, HeldModel
from ..engine.failure import load_failure, request_failure
from ..errors import Withdrawn
from ..log import line, log
from .effects import Effects
from .loading import Aside, Loading, Loads
from .registry import Registry
from .request import Assignment
from .running import Running, log_failure

SLOW_CONSUMER_S = 30.0
"""How long a request may wait for credit."""

_MEMORY_PERIOD_S = 0.5
_STOPPING = "the worker is stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """How the loop is: ``steps`` moves while work moves."""

    steps: int = 0
    active: int = 0
    memory_bytes: int = 0


class Loop:
    """Runs requests on loaded models.

    ``clock`` gives monotonic seconds, ``pid`` goes into Done, ``alive`` is called whenever work
    moves. Without ``aside``, which does the first on a thread of its own and then the second on the
    loop's, loads are prepared inside their step.
    """

    def __init__(
        self,
        engine: Engine,
        effects: Effects,
        *,
        clock: Callable[[], float],
        pid: int,
        intake: Callable[[], None] = lambda: None,
        alive: Callable[[], None] = lambda: None,
        aside: Aside | None = None,
        slow_consumer_s: float = SLOW_CONSUMER_S,
    ) -> None:
        self._engine = engine
        self._effects = effects
        self._clock = clock
        self._intake = intake
        self._alive = alive
        self._registry = Registry(engine)
        self._running = Running(
            engine,
            effects,
            clock=clock,
            pid=pid,
            alive=alive,
            give_back=self._give_back,
            slow_consumer_s=slow_consumer_s,
        )
        self._loads = Loads(engine, self._tell_progress, aside)
        self._loading: Loading | None = None
        self._stopped = False
        self._steps = 0
        self._counting = threading.Lock()  # preparations count from threads of their own
        self._memory_bytes = engine.held_bytes()
        self._measured_at_s = clock()

    # --- state -------------------------------------------------------------------------------

    @property
    def pulse(self) -> Pulse:
        """Health figures; may be read from any thread."""
        return Pulse(steps=self._steps, active=len(self._running), memory_bytes=self._memory_bytes)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that are loaded."""
        return self._registry.names

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called: nothing runs any more."""
        return self._stopped

    def idle_s(self) -> float | None:
        """After a ``step`` that did nothing: when to step again. None: on the next command."""
        soonest_s = self._running.due_at_s
        return None if math.isinf(soonest_s) else max(0.0, soonest_s - self._clock())

    # --- commands ----------------------------------------------------------------------------

    def load(self, name: str, body: LoadBody, *, replace: bool = False) -> None:
        """Load a model in one of the next steps.

        With ``replace`` a model held under this name serves until then, its running requests end
        on it, and it is closed after the last of them; without, the load fails. A load that fails
        replaces nothing.
        """
        self._loads.ask(name, body, replace=replace)

    def withdraw(self, name: str, body: LoadBody) -> None:
        """End the load asked for with this very ``body``; what is held under ``name`` stays."""
        self._withdraw(name, f"the load of model {name} was withdrawn", only=body)

    def withdraw_all(self, why: str) -> None:
        """End all loads."""
        self._withdraw_meant(lambda _: True, why)

    def unload(self, name: str) -> None:
        """Fail the model's requests, forget it and give its memory back."""
        loading = self._withdraw(name, _unloaded(name))
        self._running.fail_all(_unloaded(name), model=name)
        if self._registry.unload(name):
            log.info(line("model_unloaded", model=name))
        self._registry.close_replaced(self._running.models)
        self._give_back()
        if loading is None:
            self._effects.unloaded(name)
        else:
            loading.unload_asked = True  # told when the load has ended

    def assign(self, assignment: Assignment) -> None:
        """Run a request; it ends in exactly one ``done`` or ``failed``."""
        id = assignment.id
        if id in self._running:
            # A Failed would end the request that is running under this id.
            log.warning(line("duplicate_request", request=id, model=assignment.model))
            return
        if self._stopped:
            self._effects.failed(id, Withdrawn(_STOPPING))
            return
        try:
            model = self._registry.get(assignment.model)
        except DflashError as error:
            self._effects.failed(id, error)
            return
        self._running.add(assignment, model)

    def add_credit(self, id: bytes, chunks: int) -> None:
        """The reader of a request took ``chunks``; nothing if the request has ended."""
        self._running.add_credit(id, chunks)

    def cancel(self, id: bytes) -> None:
        """End a request in ``failed(cancelled)``; nothing if it has ended."""
        self._running.cancel(id)

    def read_cache(self, id: bytes, model: str, *, clear: bool = False) -> None:
        """Tell the state of a model's prefix cache, after emptying it if ``clear``."""
        try:
            held = self._registry.get(model)
            if clear:
                held.clear_cache()
            self._effects.cache_state(id, held.cache_state())
        except Exception as error:  # noqa: BLE001 - a command's border
            failure = request_failure(error, self._engine)
            log_failure("cache_command_failed", failure, error, {"model": model})
            self._effects.failed(id, failure)

    def stop(self) -> None:
        """Fail everything and let go of all models; every later ``step`` does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._running.fail_all(_STOPPING)
        self.withdraw_all(_STOPPING)
        self._registry.clear()
        self._give_back()

    # --- steps -------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take commands in, end what is over, and do one step. False: there was none to do."""
        self._intake()
        if self._stopped:
            return False
        self._running.end_overdue()
        self._close_replaced()
        loading = self._loads.next()
        if loading is None:
            return self._step_one()
        self._load(loading)
        return True

    def _step_one(self) -> bool:
        if not self._running.step():
            return False
        self._count()
        if self._clock() - self._measured_at_s >= _MEMORY_PERIOD_S:
            self._measure()
        return True

    # --- loads -------------------------------------------------------------------------------

    def _withdraw(self, name: str, why: str, *, only: LoadBody | None = None) -> Loading | None:
        """End waiting loads of ``name`` and abandon the one that runs, which is returned."""

        def meant(loading: Loading) -> bool:
            return loading.name == name and (only is None or loading.body is only)

        return self._withdraw_meant(meant, why)

    def _withdraw_meant(self, meant: Callable[[Loading], bool], why: str) -> Loading | None:
        for loading in self._loads.withdraw(meant, why):
            self._effects.load_failed(loading.name, Withdrawn(why))
        running = self._loading
        if running is None or not meant(running):
            return None
        running.errand.call_off(why)
        return running

    def _load(self, loading: Loading) -> None:
        self._alive()
        self._loading = loading
        loading.resumed_at_s = self._clock()
        outcome = self._try_load(loading)
        self._loading = None
        self._count()
        if isinstance(outcome, DflashError):
            # Outside the handler: an exception alive would keep the half-loaded arrays.
            self._give_back()
            self._effects.load_failed(loading.name, outcome)
            if loading.unload_asked:
                self._effects.unloaded(loading.name)
            return
        self._measure()
        self._effects.loaded(loading.name, outcome.facts)

    def _try_load(self, loading: Loading) -> HeldModel | DflashError:
        def progress(stage: str, done: int, total: int, unit: str) -> None:
            self._progress(loading, stage, done, total, unit)

        name = loading.name
        if loading.failure is not None:
            log_failure("load_failed", loading.failure, loading.failure, {"model": name})
            return loading.failure
        try:
            model = self._registry.load(
                name,
                loading.body,
                progress,
                prepared=loading.prepared,
                check=loading.errand.check,
                replace=loading.replace,
            )
        except Exception as error:  # noqa: BLE001 - a load's border
            failure = loading.errand.withdrawn() or load_failure(error, self._engine)
            log_failure("load_failed", failure, error, {"model": name})
            return failure
        log.info(line("model_loaded", model=name, engine=model.facts.engine))
        return model

    def _progress(self, loading: Loading, stage: str, done: int, total: int, unit: str) -> None:
        self._alive()
        self._tell_progress(loading.name, stage, done, total, unit)
        if threading.get_ident() != loading.thread:
            # A backend may report from threads of its own; commands wait for the engine's.
            loading.errand.check()
            return
        load_s = self._clock() - loading.resumed_at_s
        resumed_at_s = self._clock()
        self._intake()
        loading.errand.check()
        self._running.end_overdue()
        while self._clock() - resumed_at_s < load_s and self._step_one():
            self._intake()
            loading.errand.check()
            self._running.end_overdue()
        loading.resumed_at_s = self._clock()

    def _tell_progress(self, name: str, stage: str, done: int, total: int, unit: str) -> None:
        """From any thread."""
        self._count()
        self._effects.progress(name, stage, done, total, unit)

    def _count(self) -> None:
        with self._counting:
            self._steps += 1

    # --- memory ------------------------------------------------------------------------------

    def _close_replaced(self) -> None:
        """Close models that others replaced, once no request runs on them.

        Between two steps: only then does no frame of ours refer to them.
        """
        if self._registry.close_replaced(self._running.models):
            self._give_back()

    def _give_back(self) -> None:
        self._engine.reclaim()
        self._measure()

    def _measure(self) -> None:
        self._memory_bytes = self._engine.held_bytes()
        self._measured_at_s = self._clock()


def _unloaded(name: str) -> str:
    return f"model {name} was unloaded"
