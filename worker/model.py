"""A loaded model: a target, and a draft that was checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..protocol.messages import LoadBody
from .cache.identity import CacheIdentity, Fingerprint
from .decoder import BlockDecoder, Decoder, PlainDecoder
from .drafting import Drafter
from .features import FeatureTap
from .guard import Lease
from .sampling import Sampler
from .targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A target with or without a draft, ready to generate. Sizes in bytes and tokens."""

    name: str
    digest: str
    engine: Literal["dflash", "plain"]
    engine_reason: str
    block_tokens: int
    context_tokens: int
    memory_bytes: int
    """Of all weights it uses."""
    shared_bytes: int
    """Of those among them that were here before it."""
    device: str
    dtype: str
    tokenizer: Any
    eos_token_ids: frozenset[int]
    vocab_size: int
    defaults: LoadBody
    target: Target
    drafter: Drafter | None
    lease: Lease | None
    """Its claims on the classes whose instances it hooks; None: it hooks nothing."""
    identity: CacheIdentity
    fingerprint: Fingerprint
    parts: tuple[object, ...] = ()
    """What it has in common with others, or may have: held as long as the model is."""

    def decoder(self, engine: Literal["dflash", "plain"], sampler: Sampler) -> Decoder:
        """A fresh decoder for one request.

        Raises:
            DFlashHookConflict: other code changed what this model hooks.
        """
        if engine == "plain" or self.drafter is None or self.lease is None:
            return PlainDecoder(self.target, sampler)
        self.lease.check()
        tap = FeatureTap(self.target.layers, self.drafter.draft.config.target_layer_ids)
        return BlockDecoder(self.target, self.drafter, tap, sampler, self.block_tokens)

    def close(self) -> None:
        """Give up its claims; it decodes no more blocks."""
        if self.lease is not None:
            self.lease.release()
