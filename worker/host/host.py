"""Models inside another application: the engine of a worker process, as a library."""

from __future__ import annotations

import math
import os
import secrets
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack, final

from ...protocol.arguments import Patience, Seconds, checked, checked_call
from ...protocol.ask import GenerateOptions, deadline_ms, generate_body
from ...protocol.codec import encode_question
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import CacheBody, Generate, LoadedBody, Name
from ..engine.border import Engine
from ..engine.failure import detached
from ..engine.imports import make_guest_engine, prepare_blas
from ..loop.loop import SLOW_CONSUMER_S, Loop
from ..loop.request import Assignment
from ..loop.thread import EngineThread
from ..loop.watchdog import HANG_S
from . import engines
from .answer import Answer
from .desk import Desk, Gone, HeldRecord
from .mailbox import Mailbox
from .pending_loads import LoadProgress, LoadTicket
from .settings import LoadOptions, load_body
from .statistics import HostStatistics, hooks, model_statistics
from .thread_end import ThreadEnd


@final
class Host:
    """Loads models into this process and asks them; every method from any thread.

    All mlx work is done on one engine thread of its own, which steps the requests of all models in
    turn. Everything that is asked ends exactly once, at the latest with :meth:`shutdown`; nobody
    waits longer than ``silence_s`` for an engine that stands still, and a request whose reader
    takes nothing for ``slow_consumer_s`` ends. Make it before mlx is imported if you can: on Linux
    mlx gets a faster BLAS then.
    """

    def __init__(
        self,
        *,
        silence_s: float = HANG_S,
        slow_consumer_s: float = SLOW_CONSUMER_S,
        make_engine: Callable[[], Engine] | None = None,
    ) -> None:
        self.silence_s: float = checked("silence_s", silence_s, Patience)
        slow_s: float = checked("slow_consumer_s", slow_consumer_s, Patience)
        make = make_engine or make_guest_engine
        checked_call("make_engine", make)
        if make_engine is None:
            prepare_blas()  # here, so that the caller may import mlx in the next line
        self._pid = os.getpid()
        self._desk = Desk()
        end = self._end = ThreadEnd()

        def start() -> Engine:
            end.mark()
            return make()

        self._engine = EngineThread(
            start,
            self._desk,
            on_end=self._ending(),
            hang_s=None,
            slow_consumer_s=slow_s,
        )
        engines.start(self._engine, end)
        # A host that is dropped stops; whoever waits in it holds it.
        weakref.finalize(self, engines.stop, self._engine).atexit = False

    def load(
        self,
        name: str,
        target: str | Path,
        draft: str | Path | None = None,
        *,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
        **options: Unpack[LoadOptions],
    ) -> LoadedBody:
        """Load a model and return when it is ready; the fields are those of the configuration.

        A name that is loaded with the same settings stays. With others it is replaced: requests
        that run end on the old model, which goes after the last of them; until the new one is
        ready, and if it fails, the old one serves. Both need memory meanwhile.

        ``on_progress`` is called on this thread; if it raises, the load is given up.
        """
        self._refuse_if_forked()
        checked_call("on_progress", on_progress)
        body = load_body(name, target, draft, **options)
        while True:
            opened = self._desk.open_load(name, body)
            if isinstance(opened, LoadedBody):
                return opened
            word = self._await_load(name, opened, on_progress)
            if opened.pending.is_abandoned:
                continue  # others gave that one up, and it has ended: now comes ours
            if isinstance(word, LoadedBody):
                return word
            raise detached(word)

    def _await_load(
        self, name: str, ticket: LoadTicket, on_progress: Callable[[LoadProgress], None]
    ) -> LoadedBody | DflashError:
        """The last word about a load; who does not wait for it gives the load up."""
        pending, desk = ticket.pending, self._desk

        def begin(loop: Loop, _: float) -> None:
            if desk.loads.begin(name, pending):
                loop.load(name, pending.body, replace=True)

        try:
            self._engine.do(begin)
            while True:
                word = ticket.mailbox.take(self.steps, self.silence_s, math.inf)
                if not isinstance(word, LoadProgress):
                    return word
                if not pending.is_abandoned:
                    on_progress(word)
        finally:
            if desk.loads.leave(ticket):
                self._engine.do(begin)
                self._engine.do(lambda loop, _: loop.withdraw(name, pending.body))

    def unload(self, name: str, *, drain_s: float = 0.0) -> None:
        """Forget a model and return when its memory is given back; nothing if it is not loaded.

        New requests are refused at once; those that run may end within ``drain_s``, then they fail
        with ``shutting_down``.
        """
        self._refuse_if_forked()
        name = checked("name", name, Name)
        drain_s = checked("drain_s", drain_s, Seconds)
        mailbox = Mailbox[Gone]()
        try:
            self._desk.open_unload(name, mailbox)
            self._desk.drain(drain_s, name)
            self._engine.do(lambda loop, _: loop.unload(name))
        except DflashError:
            raise
        except BaseException:  # Ctrl-C: the name must not be refused for ever
            self._engine.do(lambda loop, _: loop.unload(name))
            raise
        gone = mailbox.take(self.steps, self.silence_s, math.inf)
        if isinstance(gone, DflashError):
            raise detached(gone)

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Start a generation: iterate over the answer, or ``wait()`` for it.

        Raises DflashError(bad_request, shutting_down); what the model says is raised there.
        """
        self._refuse_if_forked()
        model = checked("model", model, Name)
        body = generate_body(prompt, **options)
        id = secrets.token_bytes(16)
        # What only the codec refuses is refused here too.
        _ = encode_question(Generate(id=id, model=model, deadline_ms=deadline_ms(deadline_s)), body)
        asked = Assignment(id=id, model=model, body=body, deadline_s=deadline_s)
        try:
            mailbox = self._desk.open_answer(id, model)
            self._engine.do(lambda loop, waited_s: loop.assign(replace(asked, waited_s=waited_s)))
            return Answer(id, self, mailbox, deadline_s)
        except BaseException:  # Ctrl-C just now: nobody would ever read it
            self._engine.do(lambda loop, _: loop.cancel(id))
            self._desk.give_up(id, DflashError(ErrorCode.cancelled, "its asker was interrupted"))
            raise

    def cache(self, model: str, *, clear: bool = False) -> CacheBody:
        """The state of a model's prefix cache, after emptying it if ``clear``."""
        self._refuse_if_forked()
        model = checked("model", model, Name)
        clear = checked("clear", clear, bool)
        id = secrets.token_bytes(16)
        mailbox = self._desk.open_question(id)
        self._engine.do(lambda loop, _: loop.read_cache(id, model, clear=clear))
        state = mailbox.take(self.steps, self.silence_s, math.inf)
        if isinstance(state, DflashError):
            raise detached(state)
        return state

    def statistics(self) -> HostStatistics:
        """What is loaded, what runs, what it takes; disturbs nothing."""
        pulse, owners = self._engine.pulse, hooks()

        def see(
            records: dict[str, HeldRecord], running: dict[str, int], loading: tuple[str, ...]
        ) -> HostStatistics:
            return HostStatistics(
                memory_bytes=pulse.memory_bytes,
                steps=pulse.steps,
                models=tuple(
                    model_statistics(name, record, running[name])
                    for name, record in records.items()
                ),
                loading=loading,
                hooks=owners,
            )

        return self._desk.look(see)

    def shutdown(self, name: str | None = None, *, drain_s: float = 0.0) -> None:
        """Unload one model, or all and end the engine thread; idempotent.

        Whoever still waits in the host gets ``shutting_down``. Raises DflashError(deadline) when
        the engine does not come out of its step: memory is given back when it does.
        """
        if self._pid != os.getpid():
            return  # what there is to end is in the process that forked
        if name is not None:
            self.unload(name, drain_s=drain_s)
            return
        drain_s = checked("drain_s", drain_s, Seconds)
        self._desk.drain(drain_s)
        self._desk.close(DflashError(ErrorCode.shutting_down, "the host was shut down"))
        engines.stop(self._engine)
        if not engines.is_over(self._engine, self._end):
            raise DflashError(
                ErrorCode.deadline,
                f"the engine did not finish its step in {engines.STOP_S:g} seconds",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # --- for its answers ---------------------------------------------------------------------

    def steps(self) -> int:
        """Moves while the engine does."""
        return self._engine.pulse.steps

    def add_credit(self, id: bytes, chunks: int) -> None:
        """The reader of a request took ``chunks``."""
        self._engine.do(lambda loop, _: loop.add_credit(id, chunks))

    def cancel(self, id: bytes) -> None:
        """Stop a request, without waiting."""
        self._engine.do(lambda loop, _: loop.cancel(id))

    def give_up(self, id: bytes, error: DflashError) -> None:
        """End a request without the engine."""
        model, desk = self._desk.give_up(id, error), self._desk
        if model:
            self._engine.do(lambda _, __: desk.count_failed(model))

    def _refuse_if_forked(self) -> None:
        if self._pid != os.getpid():
            raise DflashError(
                ErrorCode.unsupported,
                "this Host belongs to the process that forked, and so does its engine: make a new "
                "Host here, or start processes with the method spawn",
            )

    def _ending(self) -> Callable[[], None]:
        """What the engine's thread does last; it must not hold the host."""
        desk, host = self._desk, weakref.ref(self)

        def end() -> None:
            living = host()
            failure = living._engine.failure if living is not None else None  # noqa: SLF001
            if failure is None:
                desk.close(DflashError(ErrorCode.shutting_down, "the host was shut down"))
            else:
                why = f"the engine ended ({type(failure).__name__}: {failure}); see the log"
                desk.close(DflashError(ErrorCode.internal, why))

        return end
