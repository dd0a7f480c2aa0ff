"""A request that only wants its prompt counted: nothing is computed for it."""

from __future__ import annotations

from ...protocol.messages import ChunkBody, GenerateBody
from ..text.channels import open_channels
from ..text.chat import encode
from .generation import Statistics
from .model import Model


class Count:
    """Ends in its first step, before any chunk. Raises what the same request would raise, but for
    a prompt that is longer than the context: that is what one counts for.
    """

    def __init__(self, model: Model, body: GenerateBody) -> None:
        prompt = encode(model.tokenizer, body, model.vocab_size)
        _ = open_channels(model.tokenizer, body, prompt)
        self._model = model
        self._prompt_tokens = len(prompt)
        self.finished = False

    def step(self) -> ChunkBody | None:
        """It is counted already."""
        self.finished = True
        return None

    def statistics(self) -> Statistics:
        """The prompt's tokens, and nothing generated."""
        return Statistics(
            finish_reason="length",
            stop_string=None,
            engine=self._model.engine,
            engine_reason=self._model.engine_reason,
            block_tokens=0,
            cycles=0,
            acceptance_length_tokens=0.0,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=0,
            cache_hit="miss",
            cache_miss_reason="",
            generated_tokens=0,
            reasoning_tokens=0,
            prefill_ms=0.0,
            decode_ms=0.0,
        )

    def close(self) -> None:
        """There is nothing to give back."""
