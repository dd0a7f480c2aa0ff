"""Loads that threads of a host wait for: one a name, and everybody hears how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody, LoadedBody
from .mailbox import Mailbox


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is: ``done`` of ``total`` ``unit`` in ``stage``."""

    stage: str
    done: int
    total: int
    unit: str


LoadWord = LoadProgress | LoadedBody | DflashError


@dataclass(slots=True, kw_only=True, eq=False)
class PendingLoad:
    """A load that was asked for, by one thread or by several that want the same."""

    body: LoadBody
    waiters: list[Mailbox[LoadWord]]
    is_abandoned: bool = False
    """Nobody wants it any more. Who waits then wants the next load of the name."""
    last: LoadedBody | DflashError | None = None
    is_begun: bool = False
    """Only the engine's thread writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTicket:
    """One thread's place among those who wait for a load."""

    pending: PendingLoad
    mailbox: Mailbox[LoadWord]


@final
class PendingLoads:
    """By name; without locks, as :class:`Desk` says."""

    def __init__(self) -> None:
        self._pending: dict[str, PendingLoad] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is being loaded."""
        return tuple(self._pending)

    def __contains__(self, name: str) -> bool:
        return name in self._pending

    def body(self, name: str) -> LoadBody | None:
        """With what settings ``name`` is being loaded."""
        pending = self._pending.get(name)
        return pending.body if pending is not None else None

    def join(self, name: str, body: LoadBody) -> LoadTicket:
        """A place among those who wait for this load, which may be new.

        Raises DflashError(overloaded) while the name is loaded with other settings.
        """
        mailbox = Mailbox[LoadWord]()
        new = PendingLoad(body=body, waiters=[mailbox])
        pending = self._pending.setdefault(name, new)
        if pending is not new:
            if pending.body != body and not pending.is_abandoned:
                raise DflashError(
                    ErrorCode.overloaded,
                    f"model {name} is being loaded with other settings: wait for that",
                    retryable=True,
                )
            pending.waiters.append(mailbox)
            if pending.last is not None:  # it was said before we were there to hear it
                mailbox.close(pending.last)
        return LoadTicket(pending=pending, mailbox=mailbox)

    def begin(self, name: str, pending: PendingLoad) -> bool:
        """On the engine's thread, for each who waits: whether the load is to begin now. Not only
        whoever came first asks, for that thread may have been interrupted before it got there.
        """
        if pending.is_begun:
            return False
        pending.is_begun = True
        if pending.is_abandoned:
            self.end(name, DflashError(ErrorCode.cancelled, "the load was given up"))
        return not pending.is_abandoned

    def leave(self, ticket: LoadTicket) -> bool:
        """One waiter has gone; whether it was the last of a load that has not ended."""
        pending = ticket.pending
        pending.waiters.remove(ticket.mailbox)
        if pending.waiters or pending.is_abandoned or pending.last is not None:
            return False
        pending.is_abandoned = True
        return True

    def tell(self, name: str, progress: LoadProgress) -> None:
        """All who wait for ``name`` hear how far it is."""
        pending = self._pending.get(name)
        for mailbox in tuple(pending.waiters) if pending else ():
            mailbox.put(progress)

    def end(self, name: str, last: LoadedBody | DflashError) -> None:
        """All who wait for ``name`` hear how it ended."""
        pending = self._pending.pop(name, None)
        if pending is None:
            return
        pending.last = last
        for mailbox in tuple(pending.waiters):
            mailbox.close(last)
