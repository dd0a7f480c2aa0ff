"""The daemon's state as one body."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from .base import Report
from .fields import Count, Name, Seconds, Sentence
from .model import LoadedBody


class WorkerStatus(Report, frozen=True, kw_only=True):
    """One worker, as the supervisor knows it."""

    name: Name
    state: Annotated[str, Meta(max_length=32)]
    epoch: Count
    pid: Count | None
    models: tuple[Name, ...]
    active: Count
    memory_bytes: Count
    restarts: Count
    retry_in_s: Seconds | None = None
    reason: Sentence = ""
    last_lines: Sentence = ""
    saved_bytes: Count = 0
    group: Name | None = None


class ModelStatus(Report, frozen=True, kw_only=True):
    """One configured model, as the supervisor knows it."""

    name: Name
    target: str
    draft: str | None
    worker: Name
    state: Annotated[str, Meta(max_length=32)]
    queued: Count
    active: Count
    completed: Count
    loads: Count
    unloads: Count
    stage: str = ""
    stage_done: Count = 0
    stage_total: Count = 0
    loaded: LoadedBody | None = None
    group: Name | None = None
    reason: Sentence = ""
    retry_in_s: Seconds | None = None
    pinned: bool = False
    preload: bool = False
    pid: Count | None = None


class ServiceStatus(Report, frozen=True, kw_only=True):
    """What serves clients beside the local sockets: the HTTP gateway, the tcp listener."""

    name: Name
    state: Annotated[str, Meta(max_length=32)]
    pid: Count | None
    address: str
    restarts: Count
    retry_in_s: Seconds | None = None
    reason: Sentence = ""

    @property
    def serves(self) -> bool:
        """Whether clients get in by it."""
        return self.state in ("running", "listening")


class SnapshotBody(Report, frozen=True, kw_only=True):
    """The daemon's whole state, for people and tests."""

    instance: str
    version: str
    pid: Count
    uptime_s: Seconds
    state: Literal["serving", "draining"]
    workers: tuple[WorkerStatus, ...]
    models: tuple[ModelStatus, ...]
    counters: dict[str, Any]
    pool_bytes: Count = 0
    reserved_bytes: Count = 0
    services: tuple[ServiceStatus, ...] = ()
    problems: tuple[Sentence, ...] = ()
