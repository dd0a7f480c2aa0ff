"""OpenAI's ``/v1/chat/completions``: what is answered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from ....protocol.messages import ChunkBody, DoneBody, Logprobs, ToolCall
from ..asked import Wanted, Whole
from ..problem import Problem
from .chat_question import ChatRequest, read_chat
from .openai_answer import OpenAiQuestion, OpenAiWriter
from .openai_fields import error_json
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
class ChatQuestion(OpenAiQuestion):
    """One request."""

    def __init__(self, request: ChatRequest, wanted: Sequence[Wanted]) -> None:
        super().__init__(request, wanted, "chatcmpl")
        self.logprobs = bool(request.logprobs)

    def writer(self) -> ChatWriter:
        """For a streamed answer."""
        return ChatWriter(self)

    def answer(self, wholes: Sequence[Whole]) -> bytes:
        """The answer in one piece."""
        return self.whole("chat.completion", [self._choice(whole) for whole in wholes], wholes)

    def _choice(self, whole: Whole) -> dict[str, Any]:
        calls = [call for chunk in whole.chunks for call in chunk.tool_calls]
        logprobs = [each for chunk in whole.chunks for each in chunk.logprobs]
        message: dict[str, Any] = {"role": "assistant", "content": whole.text}
        if calls:
            message["content"] = whole.text or None
            message["tool_calls"] = [_call(call) for call in calls]
        if whole.reasoning:
            message["reasoning_content"] = whole.reasoning
        return {
            "message": message,
            "logprobs": _logprobs(logprobs) if self.logprobs else None,
            "finish_reason": _finish_reason(whole.stats, called=bool(calls)),
        }


@final
class ChatWriter(OpenAiWriter):
    """A streamed answer."""

    def __init__(self, question: ChatQuestion) -> None:
        super().__init__(question, "chat.completion.chunk")
        self._logprobs = question.logprobs
        self._calls = [0] * len(question.wanted)

    def begin(self) -> bytes:
        """The role, once for each choice."""
        opening = {"delta": {"role": "assistant", "content": ""}}
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
        logprobs = _logprobs(chunk.logprobs) if self._logprobs else None
        return self._event(index, {"delta": delta}, logprobs=logprobs)

    def end(self, index: int, stats: DoneBody) -> bytes:
        """One choice has its end."""
        reason = _finish_reason(stats, called=self._calls[index] > 0)
        return self._ended(index, stats, {"delta": {}}, reason)


def _logprobs(logprobs: Sequence[Logprobs]) -> dict[str, Any]:
    return {"content": chat_entries(logprobs), "refusal": None}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(stats: DoneBody | None, *, called: bool) -> str | None:
    if stats is None:
        return None
    return "tool_calls" if called and stats.finish_reason == "stop" else stats.finish_reason
