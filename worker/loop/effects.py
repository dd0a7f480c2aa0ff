"""What the loop tells the world: the port that a worker process or a host application fills."""

from __future__ import annotations

from typing import Protocol

from ...protocol.errors import DflashError
from ...protocol.messages import CacheBody, ChunkBody, DoneBody, LoadedBody


class Effects(Protocol):
    """Called on the loop's thread, except ``progress``, which may come from any.

    For each request: ``chunk`` with seq 0, 1, 2 … and then exactly one ``done`` or ``failed``.
    For each question about a cache: one ``cache_state`` or ``failed``.
    For each load: any number of ``progress``, then exactly one ``loaded`` or ``load_failed``.
    An exception out of ``chunk`` or ``done`` fails that request; the others must not raise.
    """

    def chunk(self, id: bytes, seq: int, body: ChunkBody) -> None: ...

    def done(self, id: bytes, body: DoneBody) -> None: ...

    def failed(self, id: bytes, error: DflashError) -> None: ...

    def progress(self, model: str, stage: str, done: int, total: int, unit: str) -> None: ...

    def loaded(self, model: str, facts: LoadedBody) -> None: ...

    def load_failed(self, model: str, error: DflashError) -> None: ...

    def unloaded(self, model: str) -> None: ...

    def cache_state(self, id: bytes, body: CacheBody) -> None: ...
