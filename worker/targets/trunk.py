"""The shape nearly all mlx-lm models share: a trunk ``model`` and a linear head, used apart."""

from __future__ import annotations

from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from .undo import Caches, Undo, detach_windows, supported


class TrunkTarget:
    """A trunk and a head. Families say where they differ: each has a file with a subclass.

    Multimodal checkpoints keep the whole text model under ``language_model``.
    """

    families: ClassVar[frozenset[str]]
    """``model_type`` values that this adapter serves."""
    cache_kinds: ClassVar[frozenset[type]]
    """Kinds of cache whose rollback this adapter knows."""
    supports_drafts = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._language = _language(model)
        self._trunk = self._language.model

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether the loaded model really is of this kind: families have members that differ."""
        language = _language(model)
        if not hasattr(language, "model") or not hasattr(language.model, "embed_tokens"):
            return False
        caches = make_prompt_cache(model)
        return supported(caches) and all(type(cache) in cls.cache_kinds for cache in caches)

    def make_caches(self) -> Caches:
        return make_prompt_cache(self._model)

    def prefill(self, tokens: mx.array, caches: Caches) -> mx.array:
        hidden = self._trunk(tokens, cache=caches)[:, -1:]
        detach_windows(caches)
        return self.logits(hidden)

    def verify(self, tokens: mx.array, caches: Caches) -> mx.array:
        return self._model(tokens, cache=caches)

    def undo(self, caches: Caches) -> Undo:
        return Undo(caches, self.hooked)

    @property
    def layers(self) -> list[nn.Module]:
        return self._model.layers

    @property
    def hooked(self) -> list[nn.Module]:
        return []

    def embed(self, tokens: mx.array) -> mx.array:
        return self._trunk.embed_tokens(tokens)

    def logits(self, hidden: mx.array) -> mx.array:
        """What the model itself makes of normed hidden rows: its head and what comes after."""
        return self.head(hidden)

    def head(self, hidden: mx.array) -> mx.array:
        if self._untied:
            return self._language.lm_head(hidden)
        return self._trunk.embed_tokens.as_linear(hidden)

    @property
    def head_weight(self) -> mx.array | None:
        layer = self._language.lm_head if self._untied else self._trunk.embed_tokens
        dense = type(layer) in (nn.Linear, nn.Embedding) and "bias" not in layer
        return layer.weight if dense else None

    @property
    def _untied(self) -> bool:
        return "lm_head" in self._language


def _language(model: Any) -> Any:
    return getattr(model, "language_model", model)
