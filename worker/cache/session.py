"""One request and the cache it carries: what it takes at its begin and leaves behind.

Nothing here raises into the request: a cache that fails costs a miss, and is counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol, final

import mlx.core as mx
import numpy as np

from ..log import line, log
from .boundaries import boundaries, pass_end
from .layer_state import LayerState
from .manager import CacheManager, Hit, HitKind
from .prefixes import LEAST_TOKENS, Query
from .snapshot import Snapshot

EARLY_TOKENS = 256
"""So many newly computed prompt tokens are worth a snapshot before the request has ended."""


class CachedDecoder(Protocol):
    """What a decoder lets the cache see of its state."""

    @property
    def rows(self) -> int:
        """Tokens the target's caches hold."""
        ...

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft whose context must be kept too."""
        ...

    @property
    def last_logits(self) -> mx.array | None:
        """Logits [V] behind the prompt's last row, once it is computed."""
        ...

    def restore(
        self, target: tuple[LayerState, ...], draft: tuple[LayerState, ...] | None, rows: int
    ) -> None:
        """Begin at ``rows`` tokens. Raises ValueError if the state does not fit."""
        ...

    def reset(self) -> None:
        """Begin anew, with empty caches."""
        ...

    def capture(self, rows: int) -> tuple[tuple[LayerState, ...], tuple[LayerState, ...] | None]:
        """Detached copies (lazy) of the first ``rows`` rows, of target and draft.

        Raises ValueError when the state cannot be cut so.
        """
        ...


@final
class CacheSession:
    """A request's way past its model's cache. ``manager`` None: nothing is cached."""

    def __init__(
        self,
        manager: CacheManager | None,
        decoder: CachedDecoder,
        prompt: list[int],
        *,
        chunk_tokens: int,
        cuttable: bool,
        turns: tuple[int, ...] = (),
    ) -> None:
        self._manager = manager
        self._decoder: CachedDecoder | None = decoder
        self._prompt = prompt
        self._chunk_tokens = chunk_tokens
        self._align = manager is not None and manager.settings.reuse == "aligned"
        self._cuttable = cuttable
        self._stops: tuple[int, ...] = ()
        if manager is not None and not cuttable:
            # Aligned reuse needs whole chunks, so nothing may end a pass early.
            chosen = () if self._align else turns
            self._stops = boundaries(len(prompt), chunk_tokens, chosen)
        self._aligned_tokens = 0
        self._logits: dict[int, mx.array] = {}
        self.cached_tokens = 0
        self.hit: HitKind | Literal["miss"] = "miss"
        self.miss_reason = "off" if manager is None else ""

    def begin(self) -> mx.array | None:
        """Take what the cache has; the last logits if they are all that is needed."""
        manager, decoder = self._manager, self._decoder
        if manager is None or decoder is None:
            return None
        query = Query(
            tokens=np.array(self._prompt, np.int32),
            needs_draft=decoder.has_draft,
            align_tokens=self._chunk_tokens if self._align else None,
        )
        try:
            found = manager.lookup(query)
            if not isinstance(found, Hit):
                self.miss_reason = found
                return None
            return self._take(found, decoder)
        except Exception:  # noqa: BLE001 - the cache's border: a request does without it
            log.exception(line("cache_restore_failed", identity=manager.identity.short))
            manager.note_failure("restore_failed")
            decoder.reset()
            self.miss_reason = "unreadable"
            return None

    def next_end(self, start: int) -> int:
        """Where the prefill pass that begins at ``start`` ends."""
        return pass_end(start, len(self._prompt), self._chunk_tokens, self._stops)

    def passed(self, start: int, end: int) -> None:
        """A prefill pass is done: take a snapshot if this is a place for one."""
        whole = start % self._chunk_tokens == 0 and end - start == self._chunk_tokens
        if whole and start == self._aligned_tokens:
            self._aligned_tokens = end
        if self._manager is None or self._decoder is None:
            return
        if end == len(self._prompt):
            logits = self._decoder.last_logits
            if logits is not None:
                self._logits[end] = logits
            if not self._cuttable or end - self.cached_tokens >= EARLY_TOKENS:
                self._store(self._prompt, durable=not self._cuttable)
        elif end in self._stops:
            self._store(self._prompt[:end], durable=True)

    def end(self, generated: list[int]) -> None:
        """The request is over between two steps, early or not, after ``generated`` tokens."""
        if self._manager is not None and self._decoder is not None:
            self._store((self._prompt + generated)[: self._decoder.rows], durable=True)

    def release(self) -> None:
        """Hold no state any more; what it tells of itself stays."""
        self._manager = None
        self._decoder = None
        self._logits.clear()

    def _take(self, hit: Hit, decoder: CachedDecoder) -> mx.array | None:
        snapshot = hit.snapshot
        draft = snapshot.draft if decoder.has_draft else None
        decoder.restore(snapshot.target, draft, hit.rows)
        self._aligned_tokens = min(snapshot.aligned_tokens, hit.rows)
        self._aligned_tokens -= self._aligned_tokens % self._chunk_tokens
        self.cached_tokens, self.hit = hit.rows, hit.kind
        if not hit.exact:
            return None
        self._logits[hit.rows] = snapshot.logits[hit.rows]
        return snapshot.logits[hit.rows]

    def _store(self, tokens: list[int], *, durable: bool) -> None:
        manager, decoder = self._manager, self._decoder
        if manager is None or decoder is None or len(tokens) < LEAST_TOKENS:
            return
        if not manager.is_open:
            manager.note_failure("retired")
            return
        try:
            target, draft = decoder.capture(len(tokens))
            snapshot = Snapshot(
                tokens=np.array(tokens, np.int32),
                target=target,
                draft=draft,
                logits={},
                aligned_tokens=min(self._aligned_tokens, len(tokens)),
            )
            usable = {n: row for n, row in self._logits.items() if self._serves(snapshot, n)}
            manager.store(replace(snapshot, logits=usable), durable=durable)
        except ValueError:
            # State that cannot be cut to what was committed: not sound, so not kept.
            manager.note_failure("unsound")
        except Exception:  # noqa: BLE001 - the cache's border: the request has its answer
            log.exception(line("cache_store_failed", identity=manager.identity.short))
            manager.note_failure("store_failed")

    @staticmethod
    def _serves(snapshot: Snapshot, length: int) -> bool:
        """Whether logits behind ``length`` tokens are of use with this state."""
        whole = len(snapshot.tokens)
        return length == whole or (snapshot.trimmable and length < whole)
