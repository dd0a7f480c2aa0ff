"""What the answers of both of OpenAI's interfaces have in common. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from ....protocol.messages import DoneBody
from ..asked import Wanted, Whole
from ..events import DONE, event, json
from ..problem import Problem
from ..statistics import statistics
from .openai_fields import Sampled, error, finished, usage


class OpenAiQuestion:
    """One request: what is wanted, and the frame of its answer."""

    def __init__(self, request: Sampled, wanted: Sequence[Wanted], id_prefix: str) -> None:
        self.wanted = wanted
        self.model = request.model
        self.stream = bool(request.stream)
        self.includes_usage = request.includes_usage
        self.choices = request.choices
        self.id = f"{id_prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def head(self, kind: str) -> dict[str, Any]:
        """What every object of the answer begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, kind: str, choices: Sequence[dict[str, Any]], wholes: Sequence[Whole]) -> bytes:
        """The answer in one piece; each choice gets its index and our statistics of it."""
        told = [
            {
                "index": index,
                **choice,
                "dflashd": None if whole.stats is None else statistics(whole.stats),
            }
            for index, (choice, whole) in enumerate(zip(choices, wholes, strict=True))
        ]
        tokens = usage(finished(wholes), self.choices)
        return json({**self.head(kind), "choices": told, "usage": tokens})


class OpenAiWriter:
    """A streamed answer."""

    def __init__(self, question: OpenAiQuestion, kind: str) -> None:
        self._head = question.head(kind)
        self._includes_usage = question.includes_usage
        self._choices = question.choices
        self._stats: dict[int, DoneBody] = {}

    def close(self) -> bytes:
        """All have their end."""
        if not self._includes_usage:
            return DONE
        told = usage([self._stats[index] for index in sorted(self._stats)], self._choices)
        return event({**self._head, "choices": [], "usage": told}) + DONE

    def failed(self, problem: Problem) -> bytes:
        """It broke off: an error is the last event."""
        return event(error(problem))

    def _ended(
        self, index: int, stats: DoneBody, said: dict[str, Any], finish_reason: str | None
    ) -> bytes:
        """One choice has its end, with our statistics of it."""
        self._stats[index] = stats
        return self._event(index, said, finish_reason=finish_reason, dflashd=statistics(stats))

    def _event(self, index: int, said: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, **said, "logprobs": None, "finish_reason": None, **more}
        value = {**self._head, "choices": [choice]}
        if self._includes_usage:
            value["usage"] = None
        return event(value)
