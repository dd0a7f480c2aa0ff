"""One drafted block: rows behind the anchor, through the target's embedding and head."""

from __future__ import annotations

import dataclasses
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflashd.protocol.messages import Sampling
from dflashd.worker.checkpoints.draft_config import DraftConfig
from dflashd.worker.decoding.draft import DraftModel
from dflashd.worker.decoding.drafting import Drafter
from dflashd.worker.decoding.sampling import Sampler
from dflashd.worker.targets.target import StockTarget

from .reference_draft import Array, Weights, draft_rows, random_weights, select
from .reference_filter import filtered
from .test_draft import FULL, VERSION_2, as_mlx

RANDOM = np.random.default_rng(4)
EMBEDDING: Array = RANDOM.normal(0, 1, (FULL.vocab_size, FULL.hidden_size))
HEAD: Array = RANDOM.normal(0, 0.4, (FULL.vocab_size, FULL.hidden_size))
CONTEXT_TOKENS = 7
FEATURES: Array = RANDOM.normal(0, 1, (CONTEXT_TOKENS, FULL.feature_size))
ANCHOR = 11
BLOCK_TOKENS = 5
SCALED = dataclasses.replace(
    FULL, input_embedding_scale=3.0, output_multiplier=1.7, final_logit_softcapping=4.0
)
FEW = [2, 3, 17, 30, 44]
GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_p=0.9, top_k=6, seed=3)


class TableTarget(StockTarget):
    """A target that is an embedding and a head; ``dense`` lets the drafter read part of it."""

    def __init__(self, *, dense: bool = True) -> None:
        super().__init__(None)
        self._dense = dense

    def embed(self, tokens: mx.array) -> mx.array:
        return as_mlx(EMBEDDING)[tokens]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ as_mlx(HEAD).T

    @property
    def head_weight(self) -> mx.array | None:
        return as_mlx(HEAD) if self._dense else None


def drafter(config: DraftConfig, few: list[int] | None = None, *, dense: bool = True) -> Drafter:
    draft = DraftModel(config)
    draft.load_weights([(name, as_mlx(array)) for name, array in weights(config).items()])
    vocabulary = None if few is None else mx.array(few, dtype=mx.uint32)
    return Drafter(TableTarget(dense=dense), draft, vocabulary)


def weights(config: DraftConfig) -> Weights:
    return random_weights(config, 0)


def propose(made: Drafter, sampling: Sampling) -> tuple[list[int], Any]:
    proposal = made.propose(
        ANCHOR,
        BLOCK_TOKENS,
        as_mlx(FEATURES)[None],
        made.draft.make_caches(),
        Sampler(sampling, Sampling()),
    )
    tokens: list[int] = proposal.tokens.tolist()  # pyright: ignore[reportAssignmentType]
    return tokens, None if proposal.weights is None else np.array(proposal.weights)


def reference_logits(config: DraftConfig) -> Array:
    """The draft's logits [bs, V]; the anchor's row is not for proposals."""
    block = [ANCHOR] + [config.mask_token_id] * (BLOCK_TOKENS - 1)
    embedded = EMBEDDING[block] * config.input_embedding_scale
    logits = draft_rows(config, weights(config), embedded, FEATURES) @ HEAD.T
    logits = logits * config.output_multiplier
    cap = config.final_logit_softcapping
    return cap * np.tanh(logits / cap) if cap else logits


@pytest.mark.parametrize("config", [FULL, SCALED])
def test_greedy_proposals(config: DraftConfig) -> None:
    """Greedy proposals are the best tokens of the rows behind the anchor, and carry no weights."""
    tokens, spread = propose(drafter(config), GREEDY)
    anchors_own, *expected = reference_logits(config).argmax(axis=1).tolist()
    assert tokens == expected
    assert anchors_own != tokens[0]
    assert spread is None


@pytest.mark.parametrize("config", [FULL, SCALED])
def test_sampled_proposals_tell_what_they_were_drawn_from(config: DraftConfig) -> None:
    """Weights are the draft's probabilities under the request's filter, whole and normalised."""
    tokens, spread = propose(drafter(config), SAMPLED)
    expected = np.stack([filtered(row, SAMPLED) for row in reference_logits(config)[1:]])
    np.testing.assert_allclose(spread, expected, rtol=1e-3, atol=1e-6)
    assert all(spread[row, token] > 0 for row, token in enumerate(tokens))


def test_proposals_from_frequent_tokens_only() -> None:
    """With a vocabulary only its tokens are proposed, greedy or sampled, filtered among them."""
    logits = reference_logits(SCALED)[1:, FEW]
    tokens, _ = propose(drafter(SCALED, FEW), GREEDY)
    assert tokens == [FEW[i] for i in logits.argmax(axis=1)]
    tokens, spread = propose(drafter(SCALED, FEW), SAMPLED)
    assert spread.shape == (BLOCK_TOKENS - 1, SCALED.vocab_size)
    expected = np.stack([filtered(row, SAMPLED) for row in logits])
    np.testing.assert_allclose(spread[:, FEW], expected, rtol=1e-3, atol=1e-6)
    others = np.setdiff1d(np.arange(SCALED.vocab_size), FEW)
    assert not spread[:, others].any()
    assert all(spread[row, token] > 0 for row, token in enumerate(tokens))


def test_a_packed_head_is_used_whole() -> None:
    """Where rows of the head cannot be taken apart, all tokens are proposed from."""
    tokens, spread = propose(drafter(FULL, FEW, dense=False), SAMPLED)
    whole_tokens, whole_spread = propose(drafter(FULL), SAMPLED)
    assert tokens == whole_tokens
    np.testing.assert_array_equal(spread, whole_spread)
    assert drafter(FULL, FEW, dense=False).arrays == []
    assert [array.shape for array in drafter(FULL, FEW).arrays] == [(len(FEW), FULL.hidden_size)]


SELECTING = dataclasses.replace(
    VERSION_2, output_multiplier=1.7, final_logit_softcapping=4.0, selector_top_k=5
)


def selected(config: DraftConfig, logits: Array) -> list[int]:
    """The reference's walk over ``logits`` [n, V]."""
    block = [ANCHOR] + [config.mask_token_id] * (BLOCK_TOKENS - 1)
    rows = draft_rows(config, weights(config), EMBEDDING[block], FEATURES)[1:]
    return select(config, weights(config), ANCHOR, rows, logits)


def test_selected_proposals() -> None:
    """With a selector each token is chosen knowing the one before: not the best of its row."""
    logits = reference_logits(SELECTING)[1:]
    tokens, spread = propose(drafter(SELECTING), GREEDY)
    assert tokens == selected(SELECTING, logits)
    assert tokens != logits.argmax(axis=1).tolist()
    assert spread is None


def test_selected_proposals_from_frequent_tokens_only() -> None:
    """The selector, too, keeps to a vocabulary."""
    logits = np.full((BLOCK_TOKENS - 1, SELECTING.vocab_size), -np.inf)
    logits[:, FEW] = reference_logits(SELECTING)[1:, FEW]
    tokens, _ = propose(drafter(SELECTING, FEW), GREEDY)
    assert tokens == selected(SELECTING, logits)
    assert set(tokens) <= set(FEW)


def test_selected_samples_tell_what_they_were_drawn_from() -> None:
    """Weights live on the candidates of each row, conditional on the path, and sum to 1."""
    counts = np.zeros(SELECTING.vocab_size)
    made, spread = drafter(SELECTING), None
    for seed in range(300):
        tokens, spread = propose(made, Sampling(temperature=0.9, seed=seed))
        counts[tokens[0]] += 1
        np.testing.assert_allclose(spread.sum(axis=1), 1, rtol=1e-5)
        assert ((spread > 0).sum(axis=1) <= SELECTING.selector_top_k).all()
        assert all(spread[row, token] > 0 for row, token in enumerate(tokens))
    assert spread is not None
    # The first row depends on the anchor alone, so all draws come from the same spread.
    np.testing.assert_allclose(counts / 300, spread[0], atol=0.1)
