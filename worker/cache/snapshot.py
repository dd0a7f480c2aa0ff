"""What is kept of a prompt: its tokens, every layer's state, the draft's context, last logits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from .layer_state import LayerState
from .prefixes import Candidate, Tokens

MOST_LOGITS = 4
"""Prompt lengths a snapshot keeps last logits of: those of the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State behind ``tokens``: one target row and, with a draft, one context row for each.

    ``logits`` maps a prompt length to the logits [V] of its last row: what an exact hit needs.
    ``aligned_tokens``: how many of the first rows came from whole prefill chunks of the model's
    size, as any cold run of that prompt would compute them.
    """

    tokens: Tokens
    target: tuple[LayerState, ...]
    draft: tuple[LayerState, ...] | None
    logits: Mapping[int, mx.array]
    aligned_tokens: int

    @property
    def key(self) -> str:
        """Stable name of what it is the state of: 32 hex digits."""
        digest = hashlib.sha256(b"draft" if self.draft is not None else b"plain")
        digest.update(np.ascontiguousarray(self.tokens, "<i4").tobytes())
        return digest.hexdigest()[:32]

    @property
    def trimmable(self) -> bool:
        """Whether every prefix of it can be served."""
        return all(layer.trimmable for layer in (*self.target, *(self.draft or ())))

    @property
    def arrays(self) -> list[mx.array]:
        """All of its arrays."""
        layers = (*self.target, *(self.draft or ()))
        return [a for layer in layers for a in layer.all_arrays()] + list(self.logits.values())

    @property
    def nbytes(self) -> int:
        """Bytes of arrays and tokens."""
        return sum(array.nbytes for array in self.arrays) + self.tokens.nbytes

    @property
    def candidate(self) -> Candidate:
        """As far as choosing goes."""
        return Candidate(
            key=self.key,
            tokens=self.tokens,
            trimmable=self.trimmable,
            has_draft=self.draft is not None,
            aligned_tokens=self.aligned_tokens,
            logits_at=frozenset(self.logits),
        )

    def with_logits(self, more: Mapping[int, mx.array]) -> Snapshot:
        """The same with logits of shorter prompts too, as many as are kept."""
        every = {**more, **self.logits}
        kept = sorted(every, reverse=True)[:MOST_LOGITS]
        return replace(self, logits={length: every[length] for length in kept})

    def evaluate(self) -> None:
        """Make the copies now; until then they refer to what they are copies of."""
        mx.eval(self.arrays)
