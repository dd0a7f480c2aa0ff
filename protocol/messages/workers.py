"""What the supervisor and its workers send each other, chunks and ends of requests apart."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..errors import ErrorCode
from .base import Header
from .fields import Count, Credit, Epoch, Milliseconds, Name, RequestId, Sentence


class Register(Header, tag="register", frozen=True, kw_only=True):
    """First message of a worker incarnation. ``secret`` comes from its environment."""

    worker: Name
    epoch: Epoch
    pid: Count
    secret: Annotated[bytes, Meta(min_length=16, max_length=64)]


class Progress(Header, tag="progress", frozen=True, kw_only=True):
    """A load moved: ``done`` of ``total`` ``unit`` in ``stage``. Feeds the stall timer."""

    epoch: Epoch
    model: Name
    stage: Annotated[str, Meta(max_length=64)]
    done: Count = 0
    total: Count = 0
    unit: Annotated[str, Meta(max_length=16)] = ""


class Loaded(Header, tag="loaded", frozen=True, kw_only=True):
    """The model is ready; body: :class:`LoadedBody`."""

    epoch: Epoch
    model: Name


class LoadFailed(Header, tag="load_failed", frozen=True, kw_only=True):
    """The model could not be loaded, and nothing of it is left in the worker."""

    epoch: Epoch
    model: Name
    code: ErrorCode
    message: Sentence


class Unloaded(Header, tag="unloaded", frozen=True, kw_only=True):
    """The model is gone from this worker and its memory is given back."""

    epoch: Epoch
    model: Name


class Pong(Header, tag="pong", frozen=True, kw_only=True):
    """Answer to :class:`Ping`. ``steps`` counts engine steps: it moves while work moves."""

    epoch: Epoch
    n: Count
    steps: Count
    active: Count
    memory_bytes: Count


class Registered(Header, tag="registered", frozen=True, kw_only=True):
    """The incarnation is accepted."""

    epoch: Epoch


class Load(Header, tag="load", frozen=True, kw_only=True):
    """Load one model; body: :class:`LoadBody`. Answered by Loaded or LoadFailed."""

    epoch: Epoch
    model: Name


class Unload(Header, tag="unload", frozen=True, kw_only=True):
    """Unload one model; its running requests fail. Answered by Unloaded."""

    epoch: Epoch
    model: Name


class Assign(Header, tag="assign", frozen=True, kw_only=True):
    """Run a request; the body is the client's :class:`GenerateBody`, unread."""

    id: RequestId
    epoch: Epoch
    model: Name
    credit: Credit
    deadline_ms: Milliseconds | None = None
    queued_ms: Count = 0
    load_ms: Count = 0


class Stop(Header, tag="stop", frozen=True, kw_only=True):
    """Finish nothing more: leave the process in an orderly way, exit status 0."""

    epoch: Epoch


class Ping(Header, tag="ping", frozen=True, kw_only=True):
    """Health question; answered by :class:`Pong` from the worker's I/O thread."""

    epoch: Epoch
    n: Count
