"""Who waits for what in a host: each word of the engine goes to the threads that asked."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, final

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import CacheBody, ChunkBody, DoneBody, LoadBody, LoadedBody
from ..engine.failure import detached
from ..latch import Latch
from .answer import Word
from .mailbox import Mailbox
from .pending_loads import LoadProgress, LoadTicket, PendingLoads

T = TypeVar("T")


Gone = DflashError | None


@dataclass(slots=True, kw_only=True)
class HeldRecord:
    """A loaded model, and what became of its requests. Only the engine's thread writes it."""

    body: LoadBody
    facts: LoadedBody
    completed: int = 0
    failed: int = 0
    generated_tokens: int = 0


@final
class Desk:
    """The effects of a host's loop. Whatever was opened here is closed exactly once: by the engine,
    or by :meth:`close`.

    There is no lock, because a signal handler may call the host, and wait there, while its own
    thread is in here between any two lines. Every change of a table is one operation of a dict or
    a list. An entry is made first and only then looked at whether it may stay, so that whoever
    closes a table either finds it or is seen by it.
    """

    def __init__(self) -> None:
        self._closed: DflashError | None = None
        self._is_draining = False
        self._drains: list[Latch] = []
        self._answers: dict[bytes, tuple[str, Mailbox[Word]]] = {}
        self._questions: dict[bytes, Mailbox[CacheBody | DflashError]] = {}
        self.loads = PendingLoads()
        self._unloads: list[tuple[str, Mailbox[Gone]]] = []
        self._records: dict[str, HeldRecord] = {}

    # --- what threads ask --------------------------------------------------------------------

    def open_answer(self, id: bytes, model: str) -> Mailbox[Word]:
        """A request will be assigned. Raises DflashError(shutting_down)."""
        mailbox = Mailbox[Word]()
        self._answers[id] = (model, mailbox)
        try:
            self._refuse_if_leaving(model)
        except DflashError:
            self._answers.pop(id, None)
            self._wake_drains()
            raise
        return mailbox

    def open_question(self, id: bytes) -> Mailbox[CacheBody | DflashError]:
        """A cache will be asked about. Raises DflashError(shutting_down)."""
        mailbox = self._questions[id] = Mailbox()
        try:
            self._refuse_if_closed()
        except DflashError:
            self._questions.pop(id, None)
            raise
        return mailbox

    def open_load(self, name: str, body: LoadBody) -> LoadTicket | LoadedBody:
        """A load is wanted: its facts if it is loaded just so, else what to wait for.

        Raises:
            DflashError: shutting_down; overloaded while the name is loaded with other settings.
        """
        self._refuse_if_leaving(name)
        held = self._records.get(name)
        if held is not None and held.body == body and name not in self.loads:
            return held.facts
        ticket = self.loads.join(name, body)
        if self._closed is not None:
            self.loads.end(name, self._closed)
        return ticket

    def open_unload(self, name: str, mailbox: Mailbox[Gone]) -> None:
        """``name`` takes no more requests; call :meth:`drain`, then ask the engine."""
        entry = (name, mailbox)
        self._unloads.append(entry)
        try:
            self._refuse_if_closed()
        except DflashError:
            with suppress(ValueError):
                self._unloads.remove(entry)
            raise

    def drain(self, drain_s: float, name: str | None = None) -> None:
        """Wait until no request of ``name`` runs; without a name: of any model, and none is taken
        any more.
        """
        self._is_draining |= name is None
        until_s = time.monotonic() + drain_s
        left_s = drain_s
        while left_s > 0:
            latch = Latch()
            self._drains.append(latch)
            try:
                running = {model for model, _ in list(self._answers.values())}
                if self._closed is not None or not (running if name is None else running & {name}):
                    return
                latch.wait(left_s)
            finally:
                self._drains.remove(latch)
            left_s = until_s - time.monotonic()

    def give_up(self, id: bytes, error: DflashError) -> str:
        """End a request here; what the engine still says about it goes nowhere. The model whose
        request it was, for :meth:`count_failed`; empty if it had ended.
        """
        model, mailbox = self._answers.pop(id, ("", None))
        if mailbox is not None:
            self._wake_drains()
            mailbox.close(error)
        return model

    # --- what the engine says ----------------------------------------------------------------

    def chunk(self, id: bytes, seq: int, body: ChunkBody) -> None:
        _, mailbox = self._answers.get(id, ("", None))
        if mailbox is not None:
            mailbox.put(body)

    def done(self, id: bytes, body: DoneBody) -> None:
        model, mailbox = self._answers.pop(id, ("", None))
        if mailbox is None:
            return
        record = self._records.get(model)
        if record is not None:
            record.completed += 1
            record.generated_tokens += body.generated_tokens
        self._wake_drains()
        mailbox.close(body)

    def failed(self, id: bytes, error: DflashError) -> None:
        question = self._questions.pop(id, None)
        if question is not None:
            question.close(error)
            return
        model, mailbox = self._answers.pop(id, ("", None))
        if mailbox is not None:
            self.count_failed(model)
            self._wake_drains()
            mailbox.close(error)

    def count_failed(self, model: str) -> None:
        """A request of ``model`` did not end well; on the engine's thread."""
        record = self._records.get(model)
        if record is not None:
            record.failed += 1

    def progress(self, model: str, stage: str, done: int, total: int, unit: str) -> None:
        self.loads.tell(model, LoadProgress(stage=stage, done=done, total=total, unit=unit))

    def loaded(self, model: str, facts: LoadedBody) -> None:
        body = self.loads.body(model)
        if body is not None:
            self._records[model] = HeldRecord(body=body, facts=facts)
        self.loads.end(model, facts)

    def load_failed(self, model: str, error: DflashError) -> None:
        self.loads.end(model, error)

    def unloaded(self, model: str) -> None:
        self._records.pop(model, None)
        for entry in tuple(self._unloads):
            if entry[0] == model:
                with suppress(ValueError):  # closed meanwhile
                    self._unloads.remove(entry)
                entry[1].close(None)
                return

    def cache_state(self, id: bytes, body: CacheBody) -> None:
        question = self._questions.pop(id, None)
        if question is not None:
            question.close(body)

    # --- the end, and looks ------------------------------------------------------------------

    def close(self, error: DflashError) -> None:
        """End all that is open with ``error``, and refuse the rest with it."""
        self._closed = self._closed or error
        self._wake_drains()
        for name in self.loads.names:
            self.loads.end(name, error)
        for id in tuple(self._answers):
            self.give_up(id, error)
        for id in tuple(self._questions):
            self.failed(id, error)
        while self._unloads:
            with suppress(IndexError):
                self._unloads.pop()[1].close(error)
        self._records.clear()

    def look(self, see: Callable[[dict[str, HeldRecord], dict[str, int], tuple[str, ...]], T]) -> T:
        """Let ``see`` look at the models held, their running requests, and what is loading."""
        running: defaultdict[str, int] = defaultdict(int)
        for model, _ in list(self._answers.values()):
            running[model] += 1
        return see(dict(self._records), running, self.loads.names)

    def _wake_drains(self) -> None:
        for latch in tuple(self._drains):
            latch.close()

    def _refuse_if_leaving(self, name: str) -> None:
        self._refuse_if_closed()
        if any(leaving == name for leaving, _ in tuple(self._unloads)):
            raise DflashError(
                ErrorCode.shutting_down, f"model {name} is being unloaded", retryable=True
            )

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise detached(self._closed)
        if self._is_draining:
            raise DflashError(ErrorCode.shutting_down, "the host is being shut down")
