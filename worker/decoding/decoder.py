"""The two ways to turn a prompt into tokens: one at a time, or a drafted block at a time.

A decoder holds one request's caches. Its only synchronisation with the device is one evaluation per
prefill chunk and one per cycle.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from ..cache.layer_state import LayerState
from ..cache.layers import capture_all, restore_all
from ..cache.session import CachedDecoder
from ..targets.target import Target
from .acceptance import judge
from .drafting import Drafter
from .features import FeatureTap
from .sampling import Sampler, token_id


class Decoder(CachedDecoder, Protocol):
    """One request's way through the target, past its cache."""

    block_tokens: int
    """Longest run one cycle can commit; 1 for plain decoding."""
    chosen_from: mx.array | None
    """Logits [n, V] that the tokens of the last call were chosen from, and perhaps more rows behind
    them; only with ``keeps_logits``, since they are large.
    """
    keeps_logits: bool

    def prefill(self, chunk: list[int]) -> None:
        """Append a chunk of the prompt that is not its last."""
        ...

    def first(self, chunk: list[int]) -> int:
        """Append the prompt's last chunk and choose the first token: the anchor."""
        ...

    def first_of(self, logits: mx.array) -> int:
        """Choose the first token from known logits [V] behind the whole prompt."""
        ...

    def cycle(self, anchor: int, limit: int) -> tuple[int, ...]:
        """The 1 to ``limit`` tokens that follow ``anchor``, the newest token so far."""
        ...


class PlainDecoder:
    """One target step per token; the next step runs while the last token is being used."""

    block_tokens = 1
    has_draft = False

    def __init__(self, target: Target, sampler: Sampler) -> None:
        self._target = target
        self._sampler = sampler
        self.keeps_logits = False
        self.reset()

    def reset(self) -> None:
        self._caches = self._target.make_caches()
        self._next: _Choice | None = None
        self.chosen_from: mx.array | None = None
        self.rows = 0
        self.last_logits: mx.array | None = None

    def restore(
        self, target: tuple[LayerState, ...], draft: tuple[LayerState, ...] | None, rows: int
    ) -> None:
        restore_all(target, self._caches, rows)
        self.rows = rows

    def capture(self, rows: int) -> tuple[tuple[LayerState, ...], None]:
        return capture_all(self._caches, self.rows, rows), None

    def prefill(self, chunk: list[int]) -> None:
        self._target.prefill(mx.array([chunk]), self._caches)
        _evaluate(self._caches)
        self.rows += len(chunk)

    def first(self, chunk: list[int]) -> int:
        logits = self._target.prefill(mx.array([chunk]), self._caches)
        self.rows += len(chunk)
        return self.first_of(logits[0, -1])

    def first_of(self, logits: mx.array) -> int:
        self.last_logits = logits
        self.chosen_from = logits[None] if self.keeps_logits else None
        return token_id(self._sampler.choose(logits))

    def cycle(self, anchor: int, limit: int) -> tuple[int, ...]:
        chosen = self._next if self._next is not None else self._after(mx.array([[anchor]]))
        self._next = None
        if limit > 1:
            self._next = self._after(chosen.token[None])
            mx.async_eval(chosen.token, self._next.token)
        self.chosen_from = chosen.logits
        return (token_id(chosen.token),)

    def _after(self, token: mx.array) -> _Choice:
        """The token behind ``token`` [1, 1], as [1], lazily."""
        logits = self._target.verify(token, self._caches)[:, -1]
        self.rows += 1
        return _Choice(self._sampler.choose(logits), logits if self.keeps_logits else None)


class _Choice(NamedTuple):
    """A token [1], and the logits [1, V] it was chosen from where they are kept."""

    token: mx.array
    logits: mx.array | None


class BlockDecoder:
    """Draft a block, verify it in one pass, roll back what was refused (arXiv 2602.06036)."""

    has_draft = True

    def __init__(
        self, target: Target, drafter: Drafter, tap: FeatureTap, sampler: Sampler, block_tokens: int
    ) -> None:
        self.block_tokens = block_tokens
        self._target = target
        self._drafter = drafter
        self._tap = tap
        self._sampler = sampler
        self.keeps_logits = False
        self.reset()

    def reset(self) -> None:
        self._caches = self._target.make_caches()
        self.chosen_from: mx.array | None = None
        self._undo = self._target.undo(self._caches)
        self._draft_caches = self._drafter.draft.make_caches()
        self._pending: mx.array | None = None
        """Features of committed tokens that are not context yet: all but the anchor's."""
        self.rows = 0
        self.last_logits: mx.array | None = None

    def restore(
        self, target: tuple[LayerState, ...], draft: tuple[LayerState, ...] | None, rows: int
    ) -> None:
        if draft is None:
            raise ValueError("a state without the draft's context cannot serve drafting")
        restore_all(target, self._caches, rows)
        restore_all(draft, self._draft_caches, rows)
        self.rows = rows

    def capture(self, rows: int) -> tuple[tuple[LayerState, ...], tuple[LayerState, ...]]:
        if self._pending is not None:
            # Their context comes a cycle later than their rows; a snapshot has both.
            self._drafter.draft.extend_context(self._pending, self._draft_caches)
            self._pending = None
        target = capture_all(self._caches, self.rows, rows)
        return target, capture_all(self._draft_caches, self.rows, rows)

    def prefill(self, chunk: list[int]) -> None:
        self._prefill(chunk)
        _evaluate(self._caches, self._draft_caches)

    def first(self, chunk: list[int]) -> int:
        return self.first_of(self._prefill(chunk)[0, -1])

    def first_of(self, logits: mx.array) -> int:
        self.last_logits = logits
        anchor = self._sampler.choose(logits)
        self.chosen_from = logits[None] if self.keeps_logits else None
        _evaluate(self._draft_caches, anchor)
        return token_id(anchor)

    def cycle(self, anchor: int, limit: int) -> tuple[int, ...]:
        rows = min(self.block_tokens, limit)
        if rows < 2:
            return self._step(anchor)
        proposal = self._drafter.propose(
            anchor, rows, self._pending, self._draft_caches, self._sampler
        )
        tokens = mx.concatenate([mx.array([anchor]), proposal.tokens])
        with self._undo.armed():
            logits = self._verify(tokens[None])
        committed = judge(proposal, logits[0], self._sampler).committed()
        self._undo.rollback(rows - len(committed))
        self.rows += len(committed)
        self.chosen_from = logits[0] if self.keeps_logits else None
        self._pending = self._tap.features()[:, : len(committed)]
        return committed

    def _prefill(self, chunk: list[int]) -> mx.array:
        with self._tap.armed():
            logits = self._target.prefill(mx.array([chunk]), self._caches)
        self._drafter.draft.extend_context(self._tap.features(), self._draft_caches)
        self.rows += len(chunk)
        return logits

    def _verify(self, tokens: mx.array) -> mx.array:
        with self._tap.armed():
            return self._target.verify(tokens, self._caches)

    def _step(self, anchor: int) -> tuple[int, ...]:
        logits = self._verify(mx.array([[anchor]]))
        token = token_id(self._sampler.choose(logits[0, -1]))
        self.rows += 1
        self.chosen_from = logits[0] if self.keeps_logits else None
        fresh = self._tap.features()
        old = self._pending
        self._pending = fresh if old is None else mx.concatenate([old, fresh], axis=1)
        return (token,)


def _evaluate(*trees: Any) -> None:
    """Evaluate arrays and the state of caches, nested in any way."""
    mx.eval([[cache.state for cache in tree] if isinstance(tree, list) else tree for tree in trees])
