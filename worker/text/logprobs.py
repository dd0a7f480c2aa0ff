"""How likely the target found what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...protocol.messages import Logprobs, TokenLogprob
from .stream import token_bytes

LEAST = -9999.0
"""Stands for a probability of zero, whose logarithm JSON could not say."""


def logprobs_of(
    logits: mx.array, tokens: Sequence[int], top: int, tokenizer: Any
) -> tuple[Logprobs, ...]:
    """Of ``tokens``, chosen from the first rows of ``logits`` [n, V], one row each.

    The probabilities are the target's own, before temperature and filters, as verified.
    """
    rows = logits[: len(tokens)].astype(mx.float32)
    rows = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(rows, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    top = min(top, rows.shape[-1])
    best = mx.argpartition(-rows, kth=top - 1, axis=-1)[:, :top] if top else None
    values = mx.take_along_axis(rows, best, axis=-1) if best is not None else None
    mx.eval(chosen, best, values)
    likelihoods: list[Any] = chosen.tolist()  # pyright: ignore[reportAssignmentType]
    ids: list[Any] = best.tolist() if best is not None else [[]] * len(tokens)  # pyright: ignore[reportAssignmentType]
    others: list[Any] = values.tolist() if values is not None else [[]] * len(tokens)  # pyright: ignore[reportAssignmentType]
    return tuple(
        Logprobs(
            token=token,
            written=token_bytes(tokenizer, token),
            logprob=max(likelihoods[n], LEAST),
            top=_sorted(ids[n], others[n], tokenizer),
        )
        for n, token in enumerate(tokens)
    )


def _sorted(tokens: list[int], values: list[float], tokenizer: Any) -> tuple[TokenLogprob, ...]:
    pairs = sorted(zip(values, tokens, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return tuple(
        TokenLogprob(token=token, written=token_bytes(tokenizer, token), logprob=max(value, LEAST))
        for value, token in pairs
    )
