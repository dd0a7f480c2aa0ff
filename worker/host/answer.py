"""A running generation, as whoever asked a host for it holds it."""

from __future__ import annotations

import time
from typing import Protocol, Self, final

from ...protocol.credit import ReceiveWindow
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.generation import Completion
from ...protocol.messages import ChunkBody, DoneBody
from ...protocol.reading import Reading
from ..engine.failure import detached
from .mailbox import Mailbox

CONFIRM_S = 10.0
"""How long a cancellation is waited for."""

GRACE_S = 2.0
"""How long after a deadline the engine's own word is waited for: it is in the middle of a step."""

Word = ChunkBody | DoneBody | DflashError


class Asker(Protocol):
    """What an answer needs of its host."""

    @property
    def silence_s(self) -> float:
        """How long the engine may stand still."""
        ...

    def steps(self) -> int:
        """Moves while the engine does."""
        ...

    def add_credit(self, id: bytes, chunks: int) -> None:
        """More chunks may come."""
        ...

    def cancel(self, id: bytes) -> None:
        """Stop it, without waiting; callable from a finaliser."""
        ...

    def give_up(self, id: bytes, error: DflashError) -> None:
        """End it here and now, whatever the engine does."""
        ...


@final
class Answer:
    """Iterate over its chunks, or wait for the whole; errors raise DflashError.

    One thread reads at a time; any may cancel. It is cancelled when it is abandoned: iteration
    left early, a ``with`` block left, Ctrl-C while waiting, or the object dropped.
    """

    def __init__(
        self, id: bytes, host: Asker, mailbox: Mailbox[Word], deadline_s: float | None
    ) -> None:
        self._id = id
        self._host = host  # dropping the host would end us
        self._mailbox = mailbox
        waits_s = float("inf") if deadline_s is None else deadline_s + GRACE_S
        self._until_s = time.monotonic() + waits_s
        self._window = ReceiveWindow()
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._stats: DoneBody | None = None

    @property
    def id(self) -> bytes:
        """The request's 128-bit id."""
        return self._id

    @property
    def stats(self) -> DoneBody | None:
        """What the engine says about it, once it has succeeded and was read to the end."""
        return self._stats

    @property
    def ended(self) -> bool:
        """Whether it has ended; chunks may still be unread."""
        return self._mailbox.closed

    def next(self) -> ChunkBody | None:
        """The next chunk, None after the last."""
        match self._take():
            case ChunkBody() as chunk:
                return self._read(chunk)
            case DoneBody() as stats:
                self._stats = stats
                return None
            case error:
                raise detached(error)  # a traceback of its own for each reader

    def wait(self) -> Completion:
        """Read to the end and return the whole, what was iterated over before included."""
        while self.next() is not None:
            pass
        if self._stats is None:
            raise DflashError(ErrorCode.internal, "a generation ended without statistics")
        return Completion(text="".join(self._text), tokens=tuple(self._tokens), stats=self._stats)

    def cancel(self) -> None:
        """Stop it and wait, for a bounded time, until that is confirmed."""
        if self.ended:
            return
        self._host.cancel(self._id)
        if not self._mailbox.wait_closed(CONFIRM_S):
            self._host.give_up(
                self._id, DflashError(ErrorCode.cancelled, "the engine did not confirm in time")
            )

    def abandon(self) -> None:
        """Stop it without waiting."""
        if not self.ended:
            self._host.cancel(self._id)

    def __iter__(self) -> Reading[ChunkBody]:
        return Reading(self, self.next, self.abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def __del__(self) -> None:
        self.abandon()

    def _take(self) -> Word:
        try:
            return self._mailbox.take(self._host.steps, self._host.silence_s, self._until_s)
        except DflashError as error:
            # The engine did not end it in time. Its own last word may have come just now.
            self._host.cancel(self._id)
            self._host.give_up(self._id, error)
            return self._mailbox.take(self._host.steps, 1.0, float("inf"))
        except BaseException:
            self.abandon()
            raise

    def _read(self, chunk: ChunkBody) -> ChunkBody:
        self._text.append(chunk.text)
        self._tokens.extend(chunk.tokens)
        self._window.arrived()
        granted = self._window.consumed()
        if granted and not self.ended:
            self._host.add_credit(self._id, granted)
        return chunk
