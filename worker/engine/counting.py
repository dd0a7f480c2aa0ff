"""A request that only wants its prompt counted: nothing is computed for it."""

from __future__ import annotations

from ...protocol.messages import ChunkBody, GenerateBody
from ..text.channels import open_channels
from ..text.chat import encode
from .border import Statistics
from .model import Model


class Count:
    """Ends in its first step, before any chunk. Raises what the same request would raise, but for
    a prompt that is longer than the context: that is what one counts for.
    """

    def __init__(self, model: Model, body: GenerateBody) -> None:
        prompt = encode(model.tokenizer, body, model.vocab_size, model.context_tokens)
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
            engine=self._model.engine,
            engine_reason=self._model.engine_reason,
            prompt_tokens=self._prompt_tokens,
        )

    def close(self) -> None:
        """There is nothing to give back."""
