"""A loaded model: a target, and a draft that was checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody
from ..cache.identity import CacheIdentity, Fingerprint
from ..decoding.decoder import BlockDecoder, Decoder, PlainDecoder
from ..decoding.drafting import Drafter
from ..decoding.features import FeatureTap
from ..decoding.sampling import Sampler
from ..hooks.lease import Lease
from ..targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A target with or without a draft, ready to generate. Sizes in bytes and tokens."""

    name: str
    digest: str
    engine: Literal["dflash", "plain"]
    engine_reason: str
    block_tokens: int
    block_tokens_limit: int
    """The longest block a request may ask for; 0 without a draft."""
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

    def decoder(
        self,
        engine: Literal["dflash", "plain"],
        sampler: Sampler,
        block_tokens: int | None = None,
    ) -> Decoder:
        """A fresh decoder for one request; ``block_tokens`` are drafted at a time, if not the
        model's own number.

        Raises:
            DflashError: bad_request for a longer block than the draft was made for.
            DFlashHookConflict: other code changed what this model hooks.
        """
        if engine == "plain" or self.drafter is None or self.lease is None:
            return PlainDecoder(self.target, sampler)
        if (block_tokens or 0) > self.block_tokens_limit:
            raise DflashError(
                ErrorCode.bad_request,
                f"block_tokens {block_tokens} is too long for the draft of model {self.name}: "
                f"at most {self.block_tokens_limit}",
            )
        self.lease.check()
        tap = FeatureTap(self.target.layers, self.drafter.draft.config.target_layer_ids)
        return BlockDecoder(
            self.target, self.drafter, tap, sampler, block_tokens or self.block_tokens
        )

    def close(self) -> None:
        """Give up its claims; it decodes no more blocks."""
        if self.lease is not None:
            self.lease.release()
