"""What the parts of a cycle cost: a verify pass by row count, a draft, a plain step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import mlx.core as mx

from dflashd.protocol.messages import Sampling
from dflashd.worker.decoding.features import FeatureTap
from dflashd.worker.decoding.sampling import Sampler
from dflashd.worker.engine.model import Model

CONTEXT_TOKENS = 96
REPEATS = 5
GREEDY = Sampler(Sampling(), Sampling())


class Bench:
    """A target and a draft with CONTEXT_TOKENS in their caches."""

    def __init__(self, model: Model) -> None:
        assert model.drafter is not None
        self._block_tokens = model.block_tokens
        self._drafter = model.drafter
        self._target = model.target
        ids = self._drafter.draft.config.target_layer_ids
        self._tap = FeatureTap(self._target.layers, ids)
        self._caches = self._target.make_caches()
        self._undo = self._target.undo(self._caches)
        self._draft_caches = self._drafter.draft.make_caches()
        prompt = mx.array([[(37 * i) % model.vocab_size for i in range(CONTEXT_TOKENS)]])
        with self._tap.armed():
            logits = self._target.prefill(prompt, self._caches)
        features = self._tap.features()
        self._drafter.draft.extend_context(features, self._draft_caches)
        self._features = mx.contiguous(features[:, -2:])
        mx.eval(logits, self._features, [cache.state for cache in self._draft_caches])

    def verify_ms(self, rows: int) -> float:
        """Target pass on ``rows`` rows with features captured, and its rollback."""
        tokens = mx.array([list(range(500, 500 + rows))])

        def verify() -> None:
            with self._tap.armed(), self._undo.armed():
                logits = self._target.verify(tokens, self._caches)
            mx.eval(mx.argmax(logits, axis=-1), self._tap.features())
            self._undo.rollback(rows)

        return _median_ms(verify)

    def step_ms(self) -> float:
        """Target pass on one row without capture: a step of plain decoding."""

        def step() -> None:
            with self._undo.armed():
                logits = self._target.verify(mx.array([[500]]), self._caches)
            mx.eval(mx.argmax(logits, axis=-1))
            self._undo.rollback(1)

        return _median_ms(step)

    def draft_ms(self) -> float:
        """One draft of a whole block, behind two newly committed tokens."""

        def draft() -> None:
            proposal = self._drafter.propose(
                500, self._block_tokens, self._features, self._draft_caches, GREEDY
            )
            mx.eval(proposal.tokens)
            for cache in self._draft_caches:
                cache.trim(2)

        return _median_ms(draft)


def _median_ms(work: Callable[[], None]) -> float:
    work()
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3
