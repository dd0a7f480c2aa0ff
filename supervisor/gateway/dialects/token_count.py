"""Anthropic's ``/v1/messages/count_tokens``: how long a prompt is for a model. Pure.

The model's own template and tokenizer count, so that it is loaded for that as for any request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, final

from ..asked import Wanted, Whole
from ..events import json
from ..problem import Problem
from .messages import Messages
from .messages_question import read_count


@final
class TokenCount:
    """The dialect."""

    def read(self, data: bytes) -> TokenCountQuestion:
        """Understand a request body. Raises Problem that names what is wrong."""
        model, wanted = read_count(data)
        return TokenCountQuestion(model, wanted)

    def error(self, problem: Problem) -> bytes:
        """A refusal as JSON."""
        return Messages().error(problem)


@final
class TokenCountQuestion:
    """One request; its answer is one number."""

    stream = False

    def __init__(self, model: str, wanted: Wanted) -> None:
        self.model = model
        self.wanted: Sequence[Wanted] = (wanted,)

    def writer(self) -> NoReturn:
        """Nothing is streamed."""
        raise TypeError("a count is not streamed")

    def answer(self, wholes: Sequence[Whole]) -> bytes:
        """The prompt's tokens."""
        (whole,) = wholes
        return json({"input_tokens": whole.stats.prompt_tokens if whole.stats else 0})
