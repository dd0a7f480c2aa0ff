"""What the loop tells, as protocol messages in the outbox."""

from __future__ import annotations

from typing import final

from ...protocol.codec import encode
from ...protocol.errors import DflashError
from ...protocol.messages import (
    CacheBody,
    CacheState,
    Chunk,
    ChunkBody,
    Done,
    DoneBody,
    Failed,
    Loaded,
    LoadedBody,
    LoadFailed,
    Progress,
    Unloaded,
)
from ..throttle import Throttle
from .outbox import Outbox

_STAGE_LIMIT, _UNIT_LIMIT = 64, 16

PROGRESS_PERIOD_S = 0.1
"""Progress within one stage of a load is told this often, and at its end."""


@final
class WireEffects:
    """Effects of a worker process. Encoding happens here: what cannot be sent fails its request."""

    def __init__(self, epoch: int, outbox: Outbox) -> None:
        self._epoch = epoch
        self._outbox = outbox
        self._throttles: dict[str, Throttle] = {}

    def chunk(self, id: bytes, seq: int, body: ChunkBody) -> None:
        header = Chunk(id=id, seq=seq, epoch=self._epoch, tokens=len(body.tokens))
        self._outbox.put(encode(header, body))

    def done(self, id: bytes, body: DoneBody) -> None:
        self._outbox.put(encode(Done(id=id, epoch=self._epoch), body))

    def failed(self, id: bytes, error: DflashError) -> None:
        self._outbox.put(encode(Failed.of(error, id, self._epoch)))

    def progress(self, model: str, stage: str, done: int, total: int, unit: str) -> None:
        throttle = self._throttles.setdefault(model, Throttle(PROGRESS_PERIOD_S))
        if not throttle.passes(stage, done, total):
            return
        header = Progress(
            epoch=self._epoch,
            model=model,
            stage=_text(stage, _STAGE_LIMIT),
            done=max(0, int(done)),
            total=max(0, int(total)),
            unit=_text(unit, _UNIT_LIMIT),
        )
        self._outbox.offer(encode(header))

    def loaded(self, model: str, facts: LoadedBody) -> None:
        self._outbox.put(encode(Loaded(epoch=self._epoch, model=model), facts))

    def load_failed(self, model: str, error: DflashError) -> None:
        sentence = Failed.of(error).message
        header = LoadFailed(epoch=self._epoch, model=model, code=error.code, message=sentence)
        self._outbox.put(encode(header))

    def unloaded(self, model: str) -> None:
        self._outbox.put(encode(Unloaded(epoch=self._epoch, model=model)))

    def cache_state(self, id: bytes, body: CacheBody) -> None:
        self._outbox.put(encode(CacheState(id=id, epoch=self._epoch), body))


def _text(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:limit]
