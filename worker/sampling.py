"""How one request draws tokens: its filter, and its own PRNG key.

The filter is mlx-lm's (top-p, min-p and top-k on log-probabilities, then temperature), so a
request means here what it means there.
"""

from __future__ import annotations

import os

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from ..protocol.messages import Sampling


class Sampler:
    """Draws for one request; nothing else in the process touches its key.

    ``mx.random.seed`` is process-wide, so explicit keys are what makes a seed repeatable whatever
    else runs.
    """

    def __init__(self, sampling: Sampling, defaults: Sampling) -> None:
        def pick(name: str, neutral: float) -> float:
            for source in (sampling, defaults):
                value: float | None = getattr(source, name)
                if value is not None:
                    return value
            return neutral

        self._temperature = float(pick("temperature", 0.0))
        self._top_p = float(pick("top_p", 1.0))
        self._top_k = int(pick("top_k", 0))
        self._min_p = float(pick("min_p", 0.0))
        seed = sampling.seed if sampling.seed is not None else defaults.seed
        self._key = mx.random.key(
            seed if seed is not None else int.from_bytes(os.urandom(7), "big")
        )

    @property
    def greedy(self) -> bool:
        """Temperature 0: no randomness is used at all."""
        return self._temperature == 0.0

    def log_weights(self, logits: mx.array) -> mx.array:
        """Unnormalised log-probabilities [..., V] the request samples from, in float32."""
        logits = logits.astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if self._top_p < 1.0:
            logprobs = apply_top_p(logprobs, self._top_p)
        if self._min_p > 0.0:
            logprobs = apply_min_p(logprobs, self._min_p)
        if 0 < self._top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, self._top_k)
        return logprobs / self._temperature

    def key(self) -> mx.array:
        """A fresh key; each is used for one draw."""
        self._key, key = mx.random.split(self._key)
        return key

    def choose(self, logits: mx.array) -> mx.array:
        """One token per row of ``logits`` [..., V] -> [...]."""
        if self.greedy:
            return mx.argmax(logits, axis=-1)
        return mx.random.categorical(self.log_weights(logits), key=self.key())


def token_id(choice: mx.array) -> int:
    """The chosen token of a one-element array; waits for the device."""
    return int(choice.item())  # pyright: ignore[reportArgumentType]
