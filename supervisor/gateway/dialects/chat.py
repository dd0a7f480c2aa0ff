"""OpenAI's ``/v1/chat/completions``: what is answered. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, final

from ....protocol.messages import ChunkBody, DoneBody, ToolCall
from ..asked import Wanted, Whole
from ..events import DONE, event, json
from ..problem import Problem
from ..statistics import statistics
from .chat_question import ChatRequest, read_chat
from .openai_fields import error, error_json, finished, usage
from .openai_logprobs import chat_entries


@final
class Chat:
    """The dialect."""

    def read(self, data: bytes) -> ChatQuestion:
        """Understand a request body. Raises Problem that names what is wrong."""
        request, wanted = read_chat(data)
        return ChatQuestion(request, wanted)

    def error(self, problem: Problem) -> bytes:
        """A refusal as JSON."""
        return error_json(problem)


@final
class ChatQuestion:
    """One request."""

    def __init__(self, request: ChatRequest, wanted: Sequence[Wanted]) -> None:
        self.request = request
        self.wanted = wanted
        self.model = request.model
        self.stream = bool(request.stream)
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def writer(self) -> ChatWriter:
        """For a streamed answer."""
        return ChatWriter(self)

    def answer(self, wholes: Sequence[Whole]) -> bytes:
        """The answer in one piece."""
        return json(
            {
                **self.head("chat.completion"),
                "choices": [self._choice(index, whole) for index, whole in enumerate(wholes)],
                "usage": usage(finished(wholes), self.request.choices),
            }
        )

    def head(self, kind: str) -> dict[str, Any]:
        """What every object of the answer begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, whole: Whole) -> dict[str, Any]:
        calls = [call for chunk in whole.chunks for call in chunk.tool_calls]
        logprobs = [each for chunk in whole.chunks for each in chunk.logprobs]
        message: dict[str, Any] = {"role": "assistant", "content": whole.text}
        if calls:
            message["content"] = whole.text or None
            message["tool_calls"] = [_call(call) for call in calls]
        if whole.reasoning:
            message["reasoning_content"] = whole.reasoning
        asked = self.request.logprobs
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": chat_entries(logprobs), "refusal": None} if asked else None,
            "finish_reason": _finish_reason(whole.stats, called=bool(calls)),
            "dflashd": None if whole.stats is None else statistics(whole.stats),
        }


@final
class ChatWriter:
    """A streamed answer."""

    def __init__(self, question: ChatQuestion) -> None:
        self._head = question.head("chat.completion.chunk")
        self._logprobs = bool(question.request.logprobs)
        self._includes_usage = question.request.includes_usage
        self._choices = question.request.choices
        self._calls = [0] * len(question.wanted)
        self._stats: dict[int, DoneBody] = {}

    def begin(self) -> bytes:
        """The role, once for each choice."""
        opening = {"role": "assistant", "content": ""}
        return b"".join(self._event(index, opening) for index in range(len(self._calls)))

    def chunk(self, index: int, chunk: ChunkBody) -> bytes:
        """What a cycle said; empty if that shows nothing."""
        delta: dict[str, Any] = {}
        if chunk.reasoning:
            delta["reasoning_content"] = chunk.reasoning
        if chunk.text:
            delta["content"] = chunk.text
        if chunk.tool_calls:
            first = self._calls[index]
            self._calls[index] += len(chunk.tool_calls)
            delta["tool_calls"] = [
                {"index": first + n, **_call(call)} for n, call in enumerate(chunk.tool_calls)
            ]
        if not delta and not chunk.logprobs:
            return b""
        logprobs = None
        if self._logprobs:
            logprobs = {"content": chat_entries(chunk.logprobs), "refusal": None}
        return self._event(index, delta, logprobs=logprobs)

    def end(self, index: int, stats: DoneBody) -> bytes:
        """One choice has its end, with our statistics of it."""
        self._stats[index] = stats
        reason = _finish_reason(stats, called=self._calls[index] > 0)
        return self._event(index, {}, finish_reason=reason, dflashd=statistics(stats))

    def close(self) -> bytes:
        """All have theirs."""
        if not self._includes_usage:
            return DONE
        told = usage([self._stats[index] for index in sorted(self._stats)], self._choices)
        return event({**self._head, "choices": [], "usage": told}) + DONE

    def failed(self, problem: Problem) -> bytes:
        """It broke off: an error is the last event."""
        return event(error(problem))

    def _event(self, index: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        value = {**self._head, "choices": [choice]}
        if self._includes_usage:
            value["usage"] = None
        return event(value)


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(stats: DoneBody | None, *, called: bool) -> str | None:
    if stats is None:
        return None
    return "tool_calls" if called and stats.finish_reason == "stop" else stats.finish_reason
