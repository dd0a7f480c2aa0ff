"""The requests that have been assigned and have not ended: who is next, and how each one ends."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import final

from ...protocol.credit import SendWindow
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import ChunkBody
from ..engine.border import Engine, HeldModel
from ..engine.failure import request_failure
from ..errors import Withdrawn
from ..log import line, log
from .effects import Effects
from .request import ActiveRequest, Assignment
from .schedule import Schedule


@final
class Running:
    """Each request ends in exactly one ``done`` or ``failed``."""

    def __init__(
        self,
        engine: Engine,
        effects: Effects,
        *,
        clock: Callable[[], float],
        pid: int,
        alive: Callable[[], None],
        give_back: Callable[[], None],
        slow_consumer_s: float,
    ) -> None:
        self._engine = engine
        self._effects = effects
        self._clock = clock
        self._pid = pid
        self._alive = alive
        self._give_back = give_back
        self._slow_consumer_s = slow_consumer_s
        self._schedule = Schedule()
        self._active: dict[bytes, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, id: bytes) -> bool:
        return id in self._active

    @property
    def models(self) -> list[HeldModel]:
        """What they run on."""
        return [request.model for request in self._active.values()]

    @property
    def due_at_s(self) -> float:
        """When time alone ends the first of them; may be infinite."""
        due = [request.due_at_s(self._slow_consumer_s) for request in self._active.values()]
        return min(due, default=math.inf)

    def add(self, assignment: Assignment, model: HeldModel) -> None:
        """Run one more."""
        request = self._active[assignment.id] = ActiveRequest(
            assignment=assignment,
            model=model,
            assigned_at_s=self._clock() - assignment.waited_s,
            credit=SendWindow(assignment.credit),
        )
        self._schedule.join(request)

    def add_credit(self, id: bytes, chunks: int) -> None:
        """Its reader took ``chunks``; nothing if it has ended."""
        request = self._active.get(id)
        if request is None:
            return
        if not request.credit.open:
            self._schedule.join(request)
        request.gain_credit(chunks)

    def cancel(self, id: bytes) -> None:
        """End it in ``failed(cancelled)``; nothing if it has ended."""
        request = self._active.get(id)
        if request is not None:
            self._fail(request, DflashError(ErrorCode.cancelled, "the request was cancelled"))

    def fail_all(self, why: str, *, model: str | None = None) -> None:
        """Fail the requests of one model or of all. On return nothing here refers to them."""
        for request in list(self._active.values()):
            if model in (None, request.assignment.model):
                self._fail(request, Withdrawn(why))

    def end_overdue(self) -> None:
        """Fail those whose deadline or whose patience with their reader is over."""
        now_s = self._clock()
        for request in list(self._active.values()):
            failure = request.overdue(now_s, self._slow_consumer_s)
            if failure is not None:
                self._fail(request, failure)

    def step(self) -> bool:
        """One prefill chunk or decode cycle of the one whose turn it is. False: none may go on."""
        request = self._schedule.choose(self._active.values())
        if request is None:
            return False
        self._alive()
        started_s = self._clock()
        self._advance(request)
        self._schedule.charge(request, self._clock() - started_s)
        return True

    def _advance(self, request: ActiveRequest) -> None:
        """Step one request; whatever the engine raises ends this one and no other."""
        try:
            generation = request.generation
            if generation is None:
                generation = request.generation = request.model.begin(request.assignment.body)
            self._deliver(request, generation.step())
            if not generation.finished:
                return
            result = request.result(generation, self._clock(), self._pid, self._engine.held_bytes())
            self._effects.done(request.assignment.id, result)
        except Exception as error:  # noqa: BLE001 - a request's border
            failure = request_failure(error, self._engine)
            log_failure("request_failed", failure, error, _fields(request))
        else:
            self._release(request)
            return
        # Outside the handler: an exception alive would keep the step's arrays.
        self._fail(request, failure)
        if failure.code is ErrorCode.out_of_memory:
            self._give_back()

    def _deliver(self, request: ActiveRequest, output: ChunkBody | None) -> None:
        if output is None or not _says_something(output):
            return
        self._effects.chunk(request.assignment.id, request.seq, output)
        request.spend_credit(self._clock())

    def _fail(self, request: ActiveRequest, failure: DflashError) -> None:
        self._effects.failed(request.assignment.id, failure)
        self._release(request)

    def _release(self, request: ActiveRequest) -> None:
        del self._active[request.assignment.id]
        if request.generation is None:
            return
        try:
            request.generation.close()
        except Exception:  # noqa: BLE001 - a request's border
            log.exception(line("close_failed", **_fields(request)))


def _says_something(output: ChunkBody) -> bool:
    return bool(output.tokens or output.text or output.reasoning or output.tool_calls)


def _fields(request: ActiveRequest) -> dict[str, object]:
    return {"request": request.assignment.id, "model": request.assignment.model}


def log_failure(
    event: str, failure: DflashError, error: Exception, fields: dict[str, object]
) -> None:
    """An error somebody foresaw is one line; any other brings its traceback."""
    foreseen = isinstance(error, DflashError)
    text = line(event, code=failure.code, reason=failure.message, **fields)
    log.log(logging.WARNING if foreseen else logging.ERROR, text, exc_info=not foreseen)
