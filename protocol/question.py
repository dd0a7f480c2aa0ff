"""What may be asked on the control channel, each question with how its answer is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from .codec import Message, decode_body, encode_question
from .messages import (
    Accepted,
    Body,
    CacheBody,
    CacheState,
    ClearCache,
    ConfigBody,
    Done,
    Event,
    EventBody,
    Header,
    Logs,
    Measured,
    Metrics,
    MetricsBody,
    Pin,
    ReadCache,
    Reload,
    ReloadBody,
    Reloaded,
    Retire,
    Shutdown,
    Snapshot,
    SnapshotBody,
    Spawn,
    Status,
    Subscribe,
)
from .told import LogText, log_reader, read_event

T = TypeVar("T")
B = TypeVar("B", bound=Body)

OnEvent = Callable[[Accepted | Event], None]
"""Called with every progress report of a request; what it raises ends the request."""


class Question(Struct, Generic[T], frozen=True, kw_only=True):
    """Ends in one message of the kind ``answer``, or in Failed. ``at_once``: a daemon that lives
    answers without waiting for anything.
    """

    id: bytes
    frames: list[bytes]
    answer: type[Header]
    read: Callable[[Message], T]
    at_once: bool


class Feed(Struct, Generic[T], frozen=True, kw_only=True):
    """Message after message until Done; ``read`` makes None of one that says nothing yet."""

    id: bytes
    frames: list[bytes]
    read: Callable[[Message], T | None]


def new_id() -> bytes:
    """128 random bits: an id that nobody else has chosen."""
    return os.urandom(16)


def status() -> Question[SnapshotBody]:
    """The daemon's whole state."""
    return _question(Status(id=new_id()), Snapshot, _body(SnapshotBody), at_once=True)


def metrics() -> Question[MetricsBody]:
    """All metrics of the daemon."""
    return _question(Metrics(id=new_id()), Measured, _body(MetricsBody), at_once=True)


def spawn(model: str, group: str | None) -> Question[None]:
    """Load a model; answered when it is ready."""
    return _question(Spawn(id=new_id(), model=model, group=group), Done, _nothing)


def retire(model: str, *, now: bool) -> Question[None]:
    """Unload a model; answered when it is gone."""
    return _question(Retire(id=new_id(), model=model, now=now), Done, _nothing)


def pin(model: str, *, pinned: bool) -> Question[None]:
    """Keep a model, or keep it no longer."""
    return _question(Pin(id=new_id(), model=model, pinned=pinned), Done, _nothing)


def cache(model: str) -> Question[CacheBody]:
    """The state of a loaded model's prefix cache."""
    return _question(ReadCache(id=new_id(), model=model), CacheState, _body(CacheBody))


def clear_cache(model: str) -> Question[CacheBody]:
    """Empty a loaded model's prefix cache; answered by its state after that."""
    return _question(ClearCache(id=new_id(), model=model), CacheState, _body(CacheBody))


def reload(config: ConfigBody | None, *, dry_run: bool) -> Question[ReloadBody]:
    """Read the configuration again; answered by what changes."""
    header = Reload(id=new_id(), dry_run=dry_run)
    return _question(header, Reloaded, _body(ReloadBody), config)


def shutdown(*, now: bool) -> Question[None]:
    """Stop the daemon."""
    return _question(Shutdown(id=new_id(), now=now), Done, _nothing)


def events(last: int | None, *, follow: bool) -> Feed[EventBody]:
    """The last events that are kept, and with ``follow`` those to come."""
    return _feed(Subscribe(id=new_id(), last=last, follow=follow), read_event)


def logs(model: str, lines: int, *, follow: bool) -> Feed[LogText]:
    """The last lines of a worker's log, and with ``follow`` what is written from then on."""
    return _feed(Logs(id=new_id(), model=model, lines=lines, follow=follow), log_reader())


def _question(
    header: Status | Spawn | Retire | Pin | ReadCache | ClearCache | Reload | Metrics | Shutdown,
    answer: type[Header],
    read: Callable[[Message], T],
    body: Body | None = None,
    *,
    at_once: bool = False,
) -> Question[T]:
    frames = encode_question(header, body)
    return Question(id=header.id, frames=frames, answer=answer, read=read, at_once=at_once)


def _feed(header: Subscribe | Logs, read: Callable[[Message], T | None]) -> Feed[T]:
    return Feed(id=header.id, frames=encode_question(header), read=read)


def _body(type_: type[B]) -> Callable[[Message], B]:
    return lambda message: decode_body(type_, message.body)


def _nothing(_: Message) -> None:
    return None
