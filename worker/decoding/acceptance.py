"""Which proposals of a drafted block the target accepts.

Greedy: the longest prefix equal to the target's argmax. Sampled: speculative sampling (Leviathan et
al., arXiv 2211.17192), which leaves the target's distribution exactly as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from .sampling import Sampler, token_id


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafted block: ``tokens`` [n], and for sampling what each was drawn from.

    ``weights`` [n, V] are the normalised draft probabilities over the whole vocabulary.
    """

    tokens: mx.array
    weights: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Lazy result of one verification; read it with :meth:`committed` after one evaluation.

    ``accepts`` [n] tells of each proposal whether it stands if those before it do;
    ``replacements`` [n + 1] is the target's own token where the run ends at that row.
    """

    proposals: mx.array
    accepts: mx.array
    replacements: mx.array

    def committed(self) -> tuple[int, ...]:
        """The accepted proposals and the target's own token behind them."""
        mx.eval(self.proposals, self.accepts, self.replacements)
        accepts: list[bool] = self.accepts.tolist()  # pyright: ignore[reportAssignmentType]
        run = accepts.index(False) if False in accepts else len(accepts)
        proposals: list[int] = self.proposals.tolist()  # pyright: ignore[reportAssignmentType]
        return (*proposals[:run], token_id(self.replacements[run]))


def judge(proposal: Proposal, logits: mx.array, sampler: Sampler) -> Verdict:
    """Compare ``n`` proposals with the target's ``logits`` [n + 1, V] of the same positions."""
    if sampler.greedy:
        own = mx.argmax(logits, axis=-1)
        return Verdict(proposal.tokens, own[:-1] == proposal.tokens, own)
    if proposal.weights is None:
        raise ValueError("a sampled request needs the probabilities its proposals came from")
    log_p = sampler.log_weights(logits)
    p = mx.softmax(log_p, axis=-1)
    q = proposal.weights
    chosen = proposal.tokens[:, None]
    p_chosen = mx.take_along_axis(p[:-1], chosen, axis=-1)[:, 0]
    q_chosen = mx.take_along_axis(q, chosen, axis=-1)[:, 0]
    u = mx.random.uniform(shape=q_chosen.shape, key=sampler.key())
    # Where p equals q everywhere nothing is left over, and p itself is the right distribution.
    left = mx.maximum(p[:-1] - q, 0.0)
    empty = left.sum(axis=-1, keepdims=True) <= 0.0
    residual = mx.where(empty, log_p[:-1], mx.log(left))
    after = mx.concatenate([residual, log_p[-1:]], axis=0)
    replacements = mx.random.categorical(after, key=sampler.key())
    return Verdict(proposal.tokens, u * q_chosen < p_chosen, replacements)
