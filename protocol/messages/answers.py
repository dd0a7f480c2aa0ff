"""What the supervisor sends to clients."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..errors import DflashError, ErrorCode
from .base import Header
from .fields import WINDOW_CHUNKS, Count, Credit, Epoch, Name, RequestId, Seconds, Sentence


class Welcome(Header, tag="welcome", frozen=True, kw_only=True):
    """Answer to :class:`Hello`: who serves, and its limits."""

    instance: Annotated[str, Meta(max_length=64)]
    version: Annotated[str, Meta(max_length=64)]
    window: Credit = WINDOW_CHUNKS


class Accepted(Header, tag="accepted", frozen=True, kw_only=True):
    """The request is ours; sent again when what it waits for changes. ``position`` 0: running."""

    id: RequestId
    position: Count = 0
    waits_for: Sentence = ""


class Chunk(Header, tag="chunk", frozen=True, kw_only=True):
    """Output of one decode cycle; body: :class:`ChunkBody`. ``seq`` counts from 0, no gaps.

    ``tokens`` says how many the body has, for those who do not read it.
    """

    id: RequestId
    seq: Count
    epoch: Epoch
    tokens: Count = 0


class Done(Header, tag="done", frozen=True, kw_only=True):
    """The request succeeded; body: :class:`DoneBody` for a generate, empty for a control one."""

    id: RequestId
    epoch: Epoch | None = None


class Failed(Header, tag="failed", frozen=True, kw_only=True):
    """The request ended without success. ``id`` is None when a message could not be read."""

    code: ErrorCode
    message: Sentence
    id: RequestId | None = None
    epoch: Epoch | None = None
    retryable: bool = False
    retry_after_s: Seconds | None = None

    @classmethod
    def of(
        cls, error: DflashError, request_id: bytes | None = None, epoch: int | None = None
    ) -> Failed:
        """Return ``error`` as a header, its sentence cut so that the header stays small."""
        sentence = error.message.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore")
        return cls(
            code=error.code,
            message=sentence,
            id=request_id,
            epoch=epoch,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
        )

    def error(self) -> DflashError:
        """Return the exception this header stands for."""
        return DflashError(
            self.code,
            self.message,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
        )


class Snapshot(Header, tag="snapshot", frozen=True, kw_only=True):
    """Answer to :class:`Status`; body: :class:`SnapshotBody`."""

    id: RequestId


class CacheState(Header, tag="cache_state", frozen=True, kw_only=True):
    """Answer to :class:`ReadCache` and :class:`ClearCache`; body: :class:`CacheBody`."""

    id: RequestId
    epoch: Epoch | None = None


class Event(Header, tag="event", frozen=True, kw_only=True):
    """Something a waiting request ``id`` wants to know: load progress, for one."""

    id: RequestId
    name: Literal["progress", "state"]
    model: Name
    stage: Annotated[str, Meta(max_length=64)] = ""
    done: Count = 0
    total: Count = 0
    unit: Annotated[str, Meta(max_length=16)] = ""
