"""What version 2 of the draft network adds: convolutions inside the block, and a selector."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from .acceptance import Proposal
from .sampling import Sampler

SIDES = 2
"""A convolution before a sub-layer and one behind it, from one projection."""


class BlockConvolution(nn.Module):
    """A causal convolution over the rows of one block, whose kernel depends on the input.

    Channels share what depends on the input in groups of ``group`` neighbours.
    """

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        self._taps = taps
        self._group = group
        self.base_kernel = mx.zeros((SIDES, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, SIDES * taps * hidden // group, bias=False)

    def kernels(self, normed: mx.array) -> mx.array:
        """Kernels [B, L, sides, taps, H] of the sub-layer whose normed input [B, L, H] this is."""
        batch, length, hidden = normed.shape
        shape = (batch, length, SIDES, self._taps, hidden // self._group)
        dynamic = self.kernel_projection(normed).reshape(shape)
        return self.base_kernel + mx.repeat(dynamic, self._group, axis=-1)

    def __call__(self, x: mx.array, kernels: mx.array, side: int) -> mx.array:
        """Convolve ``x`` [B, L, H] with one side of ``kernels``; before the block there is 0."""
        length = x.shape[1]
        padded = mx.pad(x, [(0, 0), (self._taps - 1, 0), (0, 0)])
        output = mx.zeros_like(x)
        for tap in range(self._taps):
            start = self._taps - 1 - tap
            output = output + kernels[:, :, side, tap] * padded[:, start : start + length]
        return output


class CandidateSelector(nn.Module):
    """Chooses each token of a block knowing the one before it, among the likeliest few."""

    def __init__(self, hidden: int, vocab: int, rank: int, candidates: int) -> None:
        super().__init__()
        self._candidates = candidates
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)
        self.predecessor_codebook = mx.zeros((vocab, rank))
        self.successor_codebook = mx.zeros((vocab, rank))

    def shortlist(self, logits: mx.array) -> mx.array:
        """Places [n, k] of the likeliest few in ``logits`` [n, V], in no order."""
        count = min(self._candidates, logits.shape[-1])
        return mx.argpartition(-logits, kth=count - 1, axis=-1)[:, :count]

    def walk(
        self,
        anchor: int,
        hidden: mx.array,
        tokens: mx.array,
        unary: mx.array,
        sampler: Sampler,
    ) -> Proposal:
        """A block behind ``anchor``, token by token, lazily.

        ``hidden`` [n, H] are normed draft rows, ``tokens`` [n, k] what may follow at each place
        and ``unary`` [n, k] its logits. Weights, if any, are [n, V] along the chosen path.
        """
        middle = self.hidden_projection(hidden)
        before = mx.array(anchor)
        picked: list[mx.array] = []
        spreads: list[mx.array] = []
        for row in range(hidden.shape[0]):
            link = self.predecessor_codebook[before] * middle[row]
            scores = unary[row] + self.successor_codebook[tokens[row]] @ link
            if sampler.greedy:
                pick = mx.argmax(scores)
            else:
                log_q = sampler.log_weights(scores)
                pick = mx.random.categorical(log_q, key=sampler.key())
                spreads.append(mx.softmax(log_q))
            before = tokens[row, pick]
            picked.append(before)
        if not spreads:
            return Proposal(mx.stack(picked))
        whole = mx.zeros((len(spreads), self.predecessor_codebook.shape[0]))
        weights = mx.put_along_axis(whole, tokens, mx.stack(spreads), axis=-1)
        return Proposal(mx.stack(picked), weights)
