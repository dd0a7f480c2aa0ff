"""A request in the worker: what was asked, and how far it is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ...protocol.credit import SendWindow
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import WINDOW_CHUNKS, DoneBody, GenerateBody
from ..engine.border import Generation, HeldModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One request as it is handed to the loop.

    ``deadline_s`` is the time that remained when it arrived, ``waited_s`` ago.
    """

    id: bytes
    model: str
    body: GenerateBody
    credit: int = WINDOW_CHUNKS
    deadline_s: float | None = None
    queued_ms: float = 0
    load_ms: float = 0
    waited_s: float = 0


@dataclass(slots=True, kw_only=True)
class ActiveRequest:
    """A request that has not ended. Moments are on the loop's clock."""

    assignment: Assignment
    model: HeldModel
    assigned_at_s: float
    credit: SendWindow
    served_s: float = 0.0
    """Engine time used, as the schedule counts it."""
    generation: Generation | None = None
    turn: int = 0
    """When it was last stepped, in turns of the loop: the order among equals."""
    seq: int = 0
    starved_at_s: float | None = None
    first_output_at_s: float | None = None

    def spend_credit(self, now_s: float) -> None:
        """One more chunk went out."""
        self.seq += 1
        self.credit.take()
        self.starved_at_s = None if self.credit.open else now_s
        if self.first_output_at_s is None:
            self.first_output_at_s = now_s

    def gain_credit(self, chunks: int) -> None:
        """The reader took chunks."""
        self.credit.add(chunks)
        self.starved_at_s = None

    def overdue(self, now_s: float, patience_s: float) -> DflashError | None:
        """Why it has to end now: its deadline, or ``patience_s`` without credit."""
        deadline_at_s = self._deadline_at_s()
        if deadline_at_s is not None and now_s >= deadline_at_s:
            return DflashError(ErrorCode.deadline, f"the deadline passed after {self.seq} chunks")
        if self.starved_at_s is not None and now_s >= self.starved_at_s + patience_s:
            return DflashError(
                ErrorCode.slow_consumer, f"the client took nothing for {patience_s:g} seconds"
            )
        return None

    def due_at_s(self, patience_s: float) -> float:
        """When ``overdue`` will first say something if nothing else happens; may be infinite."""
        deadline_at_s = self._deadline_at_s()
        return min(
            math.inf if deadline_at_s is None else deadline_at_s,
            math.inf if self.starved_at_s is None else self.starved_at_s + patience_s,
        )

    def _deadline_at_s(self) -> float | None:
        remaining_s = self.assignment.deadline_s
        return None if remaining_s is None else self.assigned_at_s + remaining_s

    def result(self, generation: Generation, now_s: float, pid: int, memory_bytes: int) -> DoneBody:
        """What to tell about a finished generation."""
        first_s = now_s if self.first_output_at_s is None else self.first_output_at_s
        return DoneBody(
            **asdict(generation.statistics()),
            model=self.assignment.model,
            digest=self.model.facts.digest,
            worker_pid=pid,
            queued_ms=self.assignment.queued_ms,
            load_ms=self.assignment.load_ms,
            ttft_ms=(first_s - self.assigned_at_s) * 1000,
            memory_bytes=memory_bytes,
        )
