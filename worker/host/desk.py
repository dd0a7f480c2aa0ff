"""Who waits for what in a host: each word of the engine goes to the threads that asked."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, final

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import CacheBody, ChunkBody, DoneBody, LoadBody, LoadedBody
from ..engine.failure import detached
from .answer import Word
from .mailbox import Mailbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is: ``done`` of ``total`` ``unit`` in ``stage``."""

    stage: str
    done: int
    total: int
    unit: str


LoadWord = LoadProgress | LoadedBody | DflashError
Gone = DflashError | None


@dataclass(slots=True, kw_only=True)
class PendingLoad:
    """A load that was asked for, by one thread or by several that want the same."""

    body: LoadBody
    waiters: list[Mailbox[LoadWord]] = field(default_factory=list[Mailbox[LoadWord]])


@dataclass(slots=True, kw_only=True)
class HeldRecord:
    """A loaded model, and what became of its requests."""

    body: LoadBody
    facts: LoadedBody
    completed: int = 0
    failed: int = 0
    generated_tokens: int = 0


@final
class Desk:
    """The effects of a host's loop. The tables are behind one lock that is never held for long.

    Whatever was opened here is closed exactly once: by the engine, or by :meth:`close`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed: DflashError | None = None
        self._is_draining = False
        self._answers: dict[bytes, tuple[str, Mailbox[Word]]] = {}
        self._questions: dict[bytes, Mailbox[CacheBody | DflashError]] = {}
        self._loads: dict[str, PendingLoad] = {}
        self._unloads: defaultdict[str, deque[Mailbox[Gone]]] = defaultdict(deque)
        self._records: dict[str, HeldRecord] = {}

    # --- what threads ask --------------------------------------------------------------------

    def open_answer(self, id: bytes, model: str) -> Mailbox[Word]:
        """A request will be assigned. Raises DflashError(shutting_down)."""
        with self._lock:
            self._refuse_if_leaving(model)
            mailbox = Mailbox[Word]()
            self._answers[id] = (model, mailbox)
            return mailbox

    def open_question(self, id: bytes) -> Mailbox[CacheBody | DflashError]:
        """A cache will be asked about. Raises DflashError(shutting_down)."""
        with self._lock:
            self._refuse_if_closed()
            return self._questions.setdefault(id, Mailbox())

    def open_load(
        self, name: str, body: LoadBody
    ) -> tuple[PendingLoad, Mailbox[LoadWord], bool] | LoadedBody:
        """A load is wanted: its facts if it is loaded just so, else what to wait for, and whether
        the engine must be asked.

        Raises:
            DflashError: shutting_down; overloaded while the name is loaded with other settings.
        """
        with self._lock:
            self._refuse_if_leaving(name)
            held, pending = self._records.get(name), self._loads.get(name)
            if pending is None and held is not None and held.body == body:
                return held.facts
            if pending is not None and pending.body != body:
                raise DflashError(
                    ErrorCode.overloaded,
                    f"model {name} is being loaded with other settings: wait for that",
                    retryable=True,
                )
            is_new = pending is None
            if pending is None:
                pending = self._loads[name] = PendingLoad(body=body)
            mailbox = Mailbox[LoadWord]()
            pending.waiters.append(mailbox)
            return pending, mailbox, is_new

    def leave_load(self, pending: PendingLoad, mailbox: Mailbox[LoadWord]) -> bool:
        """One waiter has gone; whether it was the last."""
        with self._lock:
            pending.waiters.remove(mailbox)
            return not pending.waiters

    def open_unload(self, name: str) -> Mailbox[Gone]:
        """``name`` takes no more requests; call :meth:`drain`, then ask the engine."""
        with self._lock:
            self._refuse_if_closed()
            mailbox = Mailbox[Gone]()
            self._unloads[name].append(mailbox)
            return mailbox

    def drain(self, drain_s: float, name: str | None = None) -> None:
        """Wait until no request of ``name`` runs; without a name: of any model, and none is taken
        any more.
        """

        def is_over() -> bool:
            running = {model for model, _ in self._answers.values()}
            return self._closed is not None or not (running if name is None else running & {name})

        with self._lock:
            self._is_draining |= name is None
            self._changed.wait_for(is_over, drain_s)

    def give_up(self, id: bytes, error: DflashError) -> None:
        """End a request here; what the engine still says about it goes nowhere."""
        self._end_answer(id, error)

    # --- what the engine says ----------------------------------------------------------------

    def chunk(self, id: bytes, seq: int, body: ChunkBody) -> None:
        with self._lock:
            _, mailbox = self._answers.get(id, ("", None))
            if mailbox is not None:
                mailbox.put(body)

    def done(self, id: bytes, body: DoneBody) -> None:
        self._end_answer(id, body)

    def failed(self, id: bytes, error: DflashError) -> None:
        with self._lock:
            question = self._questions.pop(id, None)
        if question is not None:
            question.close(error)
        else:
            self._end_answer(id, error)

    def progress(self, model: str, stage: str, done: int, total: int, unit: str) -> None:
        with self._lock:
            pending = self._loads.get(model)
            for mailbox in pending.waiters if pending else ():
                mailbox.put(LoadProgress(stage=stage, done=done, total=total, unit=unit))

    def loaded(self, model: str, facts: LoadedBody) -> None:
        with self._lock:
            pending = self._loads.pop(model, None)
            if pending is not None:
                self._records[model] = HeldRecord(body=pending.body, facts=facts)
            _close_all(pending.waiters if pending else (), facts)

    def load_failed(self, model: str, error: DflashError) -> None:
        with self._lock:
            pending = self._loads.pop(model, None)
            _close_all(pending.waiters if pending else (), error)

    def unloaded(self, model: str) -> None:
        with self._lock:
            self._records.pop(model, None)
            waiting = self._unloads.get(model)
            if waiting:
                waiting.popleft().close(None)
            if not waiting:
                self._unloads.pop(model, None)

    def cache_state(self, id: bytes, body: CacheBody) -> None:
        with self._lock:
            question = self._questions.pop(id, None)
        if question is not None:
            question.close(body)

    # --- the end, and looks ------------------------------------------------------------------

    def close(self, error: DflashError) -> None:
        """End all that is open with ``error``, and refuse the rest with it."""
        with self._lock:
            self._closed = self._closed or error
            answers = [mailbox for _, mailbox in self._answers.values()]
            unloads = [mailbox for waiting in self._unloads.values() for mailbox in waiting]
            loads = [mailbox for pending in self._loads.values() for mailbox in pending.waiters]
            questions = list(self._questions.values())
            for table in (self._answers, self._unloads, self._loads, self._questions):
                table.clear()
            self._records.clear()
            self._changed.notify_all()
        _close_all(answers, error)
        _close_all(unloads, error)
        _close_all(loads, error)
        _close_all(questions, error)

    def look(self, see: Callable[[dict[str, HeldRecord], dict[str, int], tuple[str, ...]], T]) -> T:
        """Let ``see`` look at the models held, their running requests, and what is loading."""
        with self._lock:
            running: defaultdict[str, int] = defaultdict(int)
            for model, _ in self._answers.values():
                running[model] += 1
            return see(self._records, running, tuple(self._loads))

    def _end_answer(self, id: bytes, last: DoneBody | DflashError) -> None:
        with self._lock:
            model, mailbox = self._answers.pop(id, ("", None))
            if mailbox is None:
                return
            record = self._records.get(model)
            if record is not None and isinstance(last, DoneBody):
                record.completed += 1
                record.generated_tokens += last.generated_tokens
            elif record is not None:
                record.failed += 1
            self._changed.notify_all()
            mailbox.close(last)

    def _refuse_if_leaving(self, name: str) -> None:
        self._refuse_if_closed()
        if name in self._unloads:
            raise DflashError(
                ErrorCode.shutting_down, f"model {name} is being unloaded", retryable=True
            )

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise detached(self._closed)
        if self._is_draining:
            raise DflashError(ErrorCode.shutting_down, "the host is being shut down")


def _close_all(mailboxes: Sequence[Mailbox[T]], last: T) -> None:
    for mailbox in mailboxes:
        mailbox.close(last)
