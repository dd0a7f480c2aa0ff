"""What the engine needs of a target model, and the adapter for any mlx-lm model without a draft."""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from .undo import Caches, Undo

BACKEND = "dflash"
"""The name under which our adapters claim the classes whose instances they hook."""


class Target(Protocol):
    """A target model. Tokens are [1, L] integers, logits [1, rows, V]."""

    supports_drafts: bool

    def make_caches(self) -> Caches:
        """Empty caches for one request."""
        ...

    def prefill(self, tokens: mx.array, caches: Caches) -> mx.array:
        """Append ``tokens`` to the caches; logits of the last row only [1, 1, V], lazily."""
        ...

    def verify(self, tokens: mx.array, caches: Caches) -> mx.array:
        """Append ``tokens`` to the caches; logits of every row [1, L, V]."""
        ...

    def undo(self, caches: Caches) -> Undo:
        """What takes rows back from ``caches`` after a :meth:`verify` that ran inside it."""
        ...

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers, in the order of ``target_layer_ids``."""
        ...

    @property
    def hooked(self) -> list[nn.Module]:
        """Instances besides :attr:`layers` that :meth:`undo` hooks."""
        ...

    def embed(self, tokens: mx.array) -> mx.array:
        """Input embeddings [1, L, H] as the target itself would use them."""
        ...

    def head(self, hidden: mx.array) -> mx.array:
        """The bare LM head on normed hidden rows [1, L, H]: no scaling, no soft cap."""
        ...

    @property
    def head_weight(self) -> mx.array | None:
        """The head as one dense matrix [V, H], or None where it is quantised or more than that."""
        ...


class StockTarget:
    """Any mlx-lm model, used exactly as mlx-lm uses it: plain decoding, no draft."""

    supports_drafts = False
    hooked: list[nn.Module] = []  # noqa: RUF012 - never filled

    def __init__(self, model: Any) -> None:
        self._model = model

    def make_caches(self) -> Caches:
        return make_prompt_cache(self._model)

    def prefill(self, tokens: mx.array, caches: Caches) -> mx.array:
        if tokens.shape[1] > 1:
            self._model(tokens[:, :-1], cache=caches)
        return self._model(tokens[:, -1:], cache=caches)

    def verify(self, tokens: mx.array, caches: Caches) -> mx.array:
        return self._model(tokens, cache=caches)

    def undo(self, caches: Caches) -> Undo:
        raise TypeError("a stock target has no rollback: it never verifies more than one row")

    @property
    def layers(self) -> list[nn.Module]:
        return self._model.layers

    def embed(self, tokens: mx.array) -> mx.array:
        raise TypeError("a stock target gives no embeddings: it has no draft")

    def head(self, hidden: mx.array) -> mx.array:
        raise TypeError("a stock target gives no head: it has no draft")

    @property
    def head_weight(self) -> mx.array | None:
        return None
