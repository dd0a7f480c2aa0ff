"""What happened, in the past tense: the only input of the core."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

from ...protocol.errors import ErrorCode
from ...protocol.messages import Header, LoadBody
from ..config.configuration import Config
from ..config.differences import Plan
from .facts import ModelFacts


class Peer(NamedTuple):
    """A client connection: the socket it came through and its routing id there."""

    door: Literal["requests", "control", "tcp"]
    identity: bytes


class ClientSent(Struct, frozen=True, kw_only=True):
    """A client sent a well-formed message. ``body`` is unread.

    ``key``: the public key it came with, if any; all its connections have one share of the queues.
    """

    peer: Peer
    header: Header
    body: bytes = b""
    key: str = ""


class ClientErred(Struct, frozen=True, kw_only=True):
    """A client sent what cannot be read; ``id`` is the request's, where that much is clear."""

    peer: Peer
    code: ErrorCode
    message: str
    id: bytes | None = None


class ClientVanished(Struct, frozen=True, kw_only=True):
    """A client's connection is gone; nothing can be sent to it any more."""

    peer: Peer


class ClientOverflowed(Struct, frozen=True, kw_only=True):
    """A client reads so slowly that its outbox is full."""

    peer: Peer


class WorkerSent(Struct, frozen=True, kw_only=True):
    """A worker whose secret was right sent a well-formed message. ``body`` is unread."""

    worker: str
    epoch: int
    header: Header
    body: bytes = b""


class WorkerUnreachable(Struct, frozen=True, kw_only=True):
    """A message to a worker could not be delivered."""

    worker: str
    epoch: int


class ProcessStarted(Struct, frozen=True, kw_only=True):
    """The process asked for exists."""

    worker: str
    epoch: int
    pid: int


class ProcessStartFailed(Struct, frozen=True, kw_only=True):
    """The process asked for could not be started."""

    worker: str
    epoch: int
    reason: str


class WorkerExited(Struct, frozen=True, kw_only=True):
    """A worker's process ended and is reaped. ``status`` as in subprocess: -n is signal n."""

    worker: str
    epoch: int
    status: int
    log_tail: str = ""


class ServingBegan(Struct, frozen=True, kw_only=True):
    """The sockets are open."""


class ModelInspected(Struct, frozen=True, kw_only=True):
    """The files that ``body`` names were looked at."""

    model: str
    body: LoadBody
    facts: ModelFacts


class ShutdownAsked(Struct, frozen=True, kw_only=True):
    """A signal asked the daemon to stop; each further one presses harder."""


class ReloadAsked(Struct, frozen=True, kw_only=True):
    """A signal, or the file's change, asked for the configuration to be read again."""

    cause: Literal["signal", "file"]


class ConfigRead(Struct, frozen=True, kw_only=True):
    """The ``n``-th reading of the configuration ended well; ``plan`` says what would change."""

    n: int
    source: str
    config: Config
    plan: Plan


class ConfigRefused(Struct, frozen=True, kw_only=True):
    """The ``n``-th reading of the configuration ended without one that can be used."""

    n: int
    reason: str


class TimePassed(Struct, frozen=True, kw_only=True):
    """Nothing else happened, but the clock moved."""


Event = (
    ClientSent
    | ClientErred
    | ClientVanished
    | ClientOverflowed
    | WorkerSent
    | WorkerUnreachable
    | ProcessStarted
    | ProcessStartFailed
    | WorkerExited
    | ServingBegan
    | ModelInspected
    | ShutdownAsked
    | ReloadAsked
    | ConfigRead
    | ConfigRefused
    | TimePassed
)
