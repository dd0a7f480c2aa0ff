"""What clients send on the requests socket."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import Header
from .fields import WINDOW_CHUNKS, Credit, Milliseconds, Name, RequestId


class Hello(Header, tag="hello", frozen=True, kw_only=True):
    """First message of a connection; answered by :class:`Welcome`, and again whenever repeated."""

    client: Annotated[str, Meta(max_length=128)] = ""


class Generate(Header, tag="generate", frozen=True, kw_only=True):
    """Ask for one completion; body: :class:`GenerateBody`. Ends in exactly one Done or Failed."""

    id: RequestId
    model: Name
    credit: Credit = WINDOW_CHUNKS
    deadline_ms: Milliseconds | None = None


class AddCredit(Header, tag="credit", frozen=True, kw_only=True):
    """Allow ``chunks`` more chunks of request ``id`` (client to supervisor to worker)."""

    id: RequestId
    chunks: Credit


class Cancel(Header, tag="cancel", frozen=True, kw_only=True):
    """Stop request ``id``; it ends in Failed(cancelled) unless it had ended already."""

    id: RequestId
