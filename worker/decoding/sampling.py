"""How one request draws tokens: its filter, and its own PRNG key.

The filter is mlx-lm's (top-p, min-p and top-k on log-probabilities, then temperature), so a
request means here what it means there. Its functions are not used: they are compiled anew for
every value and number of rows, which on a CPU calls a C++ compiler and holds all requests up.
"""

from __future__ import annotations

import math
import os

import mlx.core as mx

from ...protocol.messages import Sampling

SMALLEST_TEMPERATURE = 1e-6
"""Below it only ties of float32 logits could be told from temperature 0, and 1e-40 is 0 there."""


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
        """Temperature 0 for all float32 can tell: no randomness is used at all."""
        return self._temperature < SMALLEST_TEMPERATURE

    def log_weights(self, logits: mx.array) -> mx.array:
        """Unnormalised log-probabilities [..., V] the request samples from, in float32."""
        logits = logits.astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if self._top_p < 1.0:
            logprobs = _likeliest_mass(logprobs, self._top_p)
        if self._min_p > 0.0:
            logprobs = _near_the_best(logprobs, self._min_p)
        if 0 < self._top_k < logprobs.shape[-1]:
            logprobs = _likeliest(logprobs, self._top_k)
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


def _likeliest_mass(logprobs: mx.array, top_p: float) -> mx.array:
    """Keep the fewest likeliest tokens that hold ``top_p``, and ties with the last of them."""
    falling = -mx.sort(-logprobs, axis=-1)
    before = mx.cumsum(mx.exp(falling), axis=-1, inclusive=False)
    last = (before < top_p).sum(axis=-1, keepdims=True) - 1
    return _at_least(logprobs, mx.take_along_axis(falling, last, axis=-1))


def _near_the_best(logprobs: mx.array, min_p: float) -> mx.array:
    """Keep tokens at least ``min_p`` times as likely as the likeliest."""
    return _at_least(logprobs, logprobs.max(axis=-1, keepdims=True) + math.log(min_p))


def _likeliest(logprobs: mx.array, top_k: int) -> mx.array:
    """Keep exactly ``top_k`` tokens."""
    others = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, others, mx.array(-math.inf), axis=-1)


def _at_least(logprobs: mx.array, threshold: mx.array) -> mx.array:
    return mx.where(logprobs < threshold, -math.inf, logprobs)


def token_id(choice: mx.array) -> int:
    """The chosen token of a one-element array; waits for the device."""
    return int(choice.item())  # pyright: ignore[reportArgumentType]
