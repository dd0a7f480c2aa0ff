"""Draft one block: the draft network between the target's embedding and its head."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ..targets.target import Target
from .acceptance import Proposal
from .draft import DraftModel
from .sampling import Sampler


class Drafter:
    """A draft bound to a target's embedding and head; shared by all requests of a model.

    With ``vocabulary`` [K] only those tokens are proposed: the head then reads K rows instead of
    V, and verification makes up for what is never proposed.
    """

    def __init__(
        self, target: Target, draft: DraftModel, vocabulary: mx.array | None = None
    ) -> None:
        self.draft = draft
        self._target = target
        self._vocabulary = vocabulary
        self._head: mx.array | None = None
        if vocabulary is not None and target.head_weight is not None:
            self._head = target.head_weight[vocabulary]

    @property
    def arrays(self) -> list[mx.array]:
        """What this holds beside the draft's own parameters."""
        return [self._head] if self._head is not None else []

    def propose(
        self,
        anchor: int,
        block_tokens: int,
        features: mx.array | None,
        caches: list[KVCache],
        sampler: Sampler,
    ) -> Proposal:
        """``block_tokens - 1`` proposals for the positions behind ``anchor``, lazily.

        ``features`` [1, L, F] of tokens committed since the last call become context.
        """
        config = self.draft.config
        block = mx.array([[anchor] + [config.mask_token_id] * (block_tokens - 1)])
        embedded = self._target.embed(block)
        if config.input_embedding_scale != 1.0:
            embedded = embedded * config.input_embedding_scale
        hidden = self.draft(embedded, features, caches)[:, 1:]
        logits = self.draft.scaled_logits(self._logits(hidden))[0]
        selector = self.draft.candidate_selector
        if selector is not None:
            places = selector.shortlist(logits)
            unary = mx.take_along_axis(logits, places, axis=-1)
            return selector.walk(anchor, hidden[0], self._token_ids(places), unary, sampler)
        if sampler.greedy:
            return Proposal(self._token_ids(mx.argmax(logits, axis=-1)))
        log_q = sampler.log_weights(logits)
        picks = mx.random.categorical(log_q, key=sampler.key())
        return Proposal(self._token_ids(picks), self._spread(mx.softmax(log_q, axis=-1)))

    def _logits(self, hidden: mx.array) -> mx.array:
        return self._target.head(hidden) if self._head is None else hidden @ self._head.T

    def _token_ids(self, picks: mx.array) -> mx.array:
        return picks if self._head is None else self._vocabulary[picks]  # pyright: ignore[reportOptionalSubscript]

    def _spread(self, weights: mx.array) -> mx.array:
        """Probabilities over the proposed tokens [n, K] as probabilities over all [n, V]."""
        if self._head is None:
            return weights
        whole = mx.zeros((weights.shape[0], self.draft.config.vocab_size), weights.dtype)
        whole[:, self._vocabulary] = weights
        return whole
