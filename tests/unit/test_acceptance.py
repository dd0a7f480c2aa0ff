"""What is accepted of a drafted block: exact runs when greedy, the target's distribution else."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from dflashd.protocol.messages import Sampling
from dflashd.worker.decoding.acceptance import Proposal, judge
from dflashd.worker.decoding.sampling import Sampler

from ..chi_square import fits
from .reference_filter import filtered

NONE = Sampling()
VOCAB = 12
RANDOM = np.random.default_rng(8)
TARGET = RANDOM.normal(0, 1.5, VOCAB)
DRAFT = RANDOM.normal(0, 1.5, VOCAB)
ROWS = 4000

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_p": 0.8},
    {"top_k": 4},
    {"min_p": 0.15},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 6, "min_p": 0.05},
]


def meaning(fields: dict[str, Any], seed: int = 0) -> Sampling:
    values: dict[str, Any] = {"temperature": 1.0, "seed": seed} | fields
    return Sampling(**values)


def greedy_logits(tokens: list[int]) -> mx.array:
    """Logits [n, V] whose argmaxes are ``tokens``."""
    logits = np.random.default_rng(0).uniform(0, 1, (len(tokens), VOCAB)).astype(np.float32)
    logits[np.arange(len(tokens)), tokens] += 2
    return mx.array(logits)


@pytest.mark.parametrize("proposals", [1, 2, 3, 7, 15])
def test_greedy_runs_of_every_length(proposals: int) -> None:
    """Greedy commits the matching prefix and the target's own token: for every prefix length."""
    own = [int(token) for token in np.random.default_rng(proposals).integers(0, VOCAB, 16)]
    own = own[: proposals + 1]
    greedy = Sampler(NONE, NONE)
    for run in range(proposals + 1):
        proposed = own[:proposals]
        if run < proposals:
            proposed[run] = (own[run] + 1) % VOCAB
        verdict = judge(Proposal(mx.array(proposed)), greedy_logits(own), greedy)
        assert verdict.committed() == tuple(own[: run + 1])


def test_greedy_looks_no_further_than_the_first_mismatch() -> None:
    """Matches behind a mismatch do not count."""
    verdict = judge(
        Proposal(mx.array([1, 0, 3, 4])), greedy_logits([1, 2, 3, 4, 5]), Sampler(NONE, NONE)
    )
    assert verdict.committed() == (1, 2)


def test_sampling_needs_the_drafts_probabilities() -> None:
    """A sampled request cannot be judged by tokens alone."""
    with pytest.raises(ValueError, match="probabilities"):
        judge(Proposal(mx.array([1])), greedy_logits([1, 2]), Sampler(meaning({}), NONE))


def everywhere(logits: NDArray[np.float64], sampler: Sampler) -> mx.array:
    return sampler.log_weights(as_rows(logits))


def on_a_subset(logits: NDArray[np.float64], sampler: Sampler) -> mx.array:
    """What a draft that knows only every third token draws from: the filter sees only those."""
    known = np.arange(0, VOCAB, 3)
    weights = np.full((ROWS, VOCAB), -np.inf, np.float32)
    few = sampler.log_weights(as_rows(logits)[:, mx.array(known)])
    weights[:, known] = np.array(few)
    return mx.array(weights)


def as_rows(logits: NDArray[np.float64]) -> mx.array:
    return mx.broadcast_to(mx.array(logits.astype(np.float32)), (ROWS, len(logits)))


def disjoint_from_target(logits: NDArray[np.float64], sampler: Sampler) -> mx.array:
    """Only tokens the target's filter leaves out, or hardly likely ones where it leaves none."""
    weights = np.where(np.argsort(np.argsort(TARGET)) < 3, 0.0, -np.inf)
    return mx.array(np.broadcast_to(weights, (ROWS, VOCAB)).astype(np.float32))


DRAFTS = {
    "the target itself": (TARGET, everywhere),
    "another": (DRAFT, everywhere),
    "nearly the target": (TARGET + 0.3 * DRAFT, everywhere),
    "certain and wrong": (np.where(np.arange(VOCAB) == TARGET.argmin(), 50.0, 0.0), everywhere),
    "certain and right": (np.where(np.arange(VOCAB) == TARGET.argmax(), 50.0, 0.0), everywhere),
    "on a subset": (DRAFT, on_a_subset),
    "disjoint": (DRAFT, disjoint_from_target),
}


def emitted(draft: str, sampler: Sampler, repeats: int) -> tuple[NDArray[np.int64], float]:
    """Counts of the token each row emits if the run ends or begins there, and the share accepted.

    The rows of one verdict are judged independently, so each is a trial of its own.
    """
    logits, weigh = DRAFTS[draft]
    counts, accepted = np.zeros(VOCAB, np.int64), 0
    rows = mx.concatenate([as_rows(TARGET), as_rows(TARGET)[:1]])
    for _ in range(repeats):
        log_q = weigh(logits, sampler)
        tokens = mx.random.categorical(log_q, key=sampler.key())
        verdict = judge(Proposal(tokens, mx.softmax(log_q, axis=-1)), rows, sampler)
        token = mx.where(verdict.accepts, tokens, verdict.replacements[:-1])
        counts += np.bincount(np.array(token), minlength=VOCAB)
        accepted += int(np.array(verdict.accepts).sum())
    return counts, accepted / counts.sum()


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_emitted_tokens_have_the_targets_distribution(draft: str, fields: dict[str, Any]) -> None:
    """Whatever the draft proposes, emitted tokens are distributed as the target's filter says."""
    sampler = Sampler(meaning(fields, seed=21), NONE)
    counts, accepted = emitted(draft, sampler, repeats=4)
    p = filtered(TARGET, meaning(fields))
    assert fits(counts, p)
    if draft == "the target itself":
        assert accepted == 1.0
    if draft == "disjoint" and p[np.argsort(TARGET)[:3]].sum() == 0:
        assert accepted == 0.0


def test_acceptance_is_the_overlap() -> None:
    """The share accepted is the sum of min(p, q): no acceptance is given away."""
    sampler = Sampler(meaning({}, seed=3), NONE)
    _, accepted = emitted("another", sampler, repeats=8)
    p, q = filtered(TARGET, meaning({})), filtered(DRAFT, meaning({}))
    overlap, trials = np.minimum(p, q).sum(), 8 * ROWS
    assert abs(accepted - overlap) < 5 * np.sqrt(overlap * (1 - overlap) / trials)


def test_the_bonus_has_the_targets_distribution() -> None:
    """The token behind a wholly accepted block is drawn from the target, filter and all."""
    fields = {"top_k": 5, "temperature": 1.2}
    sampler = Sampler(meaning(fields, seed=2), NONE)
    rows = as_rows(TARGET)[:2]
    counts = np.zeros(VOCAB, np.int64)
    for _ in range(500):
        log_q = sampler.log_weights(rows[:1])
        tokens = mx.random.categorical(log_q, key=sampler.key())
        committed = judge(Proposal(tokens, mx.softmax(log_q, axis=-1)), rows, sampler).committed()
        assert len(committed) == 2
        counts[committed[1]] += 1
    assert fits(counts, filtered(TARGET, meaning(fields)))


def test_a_run_over_many_keys() -> None:
    """Seed by seed, the first two tokens of a committed run have the target's joint distribution.

    The target's second row does not depend on the first token here, so both are independent.
    """
    second = np.roll(TARGET, 5)
    rows = mx.array(np.stack([TARGET, second, DRAFT]).astype(np.float32))
    draft_rows = mx.array(np.stack([TARGET + 0.5 * DRAFT, DRAFT]).astype(np.float32))
    fields = {"top_k": 4}
    joint = np.zeros((VOCAB, VOCAB), np.int64)
    first = np.zeros(VOCAB, np.int64)
    for seed in range(1200):
        sampler = Sampler(meaning(fields, seed), NONE)
        log_q = sampler.log_weights(draft_rows)
        tokens = mx.random.categorical(log_q, key=sampler.key())
        run = judge(Proposal(tokens, mx.softmax(log_q, axis=-1)), rows, sampler).committed()
        first[run[0]] += 1
        if len(run) > 1:
            joint[run[0], run[1]] += 1
    p, p2 = filtered(TARGET, meaning(fields)), filtered(second, meaning(fields))
    assert fits(first, p)
    # A run goes on where its first proposal was accepted: the second token knows no more than that.
    assert fits(joint.sum(axis=0), p2)
    assert joint.sum() > 250


def test_a_wrong_rule_would_be_seen() -> None:
    """The test is sharp: accepting by equality with an independent sample fails it."""
    p, q = filtered(TARGET, meaning({})), filtered(TARGET + 0.3 * DRAFT, meaning({}))
    random = np.random.default_rng(1)
    drafted = random.choice(VOCAB, ROWS * 4, p=q)
    kept = random.uniform(size=len(drafted)) < 0.9
    tokens = np.where(kept, drafted, random.choice(VOCAB, len(drafted), p=p))
    assert not fits(np.bincount(tokens, minlength=VOCAB), p)


def test_verdicts_repeat_and_are_independent_of_others() -> None:
    """The same seed gives the same verdict, whatever other requests or mx.random.seed do."""

    def run(disturb: bool) -> list[tuple[int, ...]]:
        sampler = Sampler(meaning({}, seed=6), NONE)
        other = Sampler(meaning({}, seed=7), NONE)
        rows = as_rows(TARGET)[:6]
        runs: list[tuple[int, ...]] = []
        for step in range(6):
            log_q = sampler.log_weights(as_rows(DRAFT)[:5])
            tokens = mx.random.categorical(log_q, key=sampler.key())
            if disturb:
                mx.random.seed(step)
                other.choose(rows)
            proposal = Proposal(tokens, mx.softmax(log_q, axis=-1))
            runs.append(judge(proposal, rows, sampler).committed())
        return runs

    assert run(disturb=False) == run(disturb=True)
