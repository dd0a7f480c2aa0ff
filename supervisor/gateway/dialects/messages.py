"""Anthropic's ``/v1/messages``: what is answered. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal, final

import msgspec

from ....protocol.messages import ChunkBody, DoneBody, ToolCall
from ..asked import Wanted, Whole
from ..events import event, json
from ..problem import Problem
from ..statistics import statistics
from .messages_question import MessagesRequest, read_messages

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

BlockKind = Literal["text", "thinking"]


@final
class Messages:
    """The dialect."""

    def read(self, data: bytes) -> MessagesQuestion:
        """Understand a request body. Raises Problem that names what is wrong."""
        request, wanted = read_messages(data)
        return MessagesQuestion(request, wanted)

    def error(self, problem: Problem) -> bytes:
        """A refusal as JSON."""
        return json(_error(problem))


@final
class MessagesQuestion:
    """One request."""

    def __init__(self, request: MessagesRequest, wanted: Wanted) -> None:
        self.wanted: Sequence[Wanted] = (wanted,)
        self.model = request.model
        self.stream = bool(request.stream)
        self.id = f"msg_{secrets.token_hex(12)}"

    def writer(self) -> MessagesWriter:
        """For a streamed answer."""
        return MessagesWriter(self)

    def answer(self, wholes: Sequence[Whole]) -> bytes:
        """The answer in one piece."""
        (whole,) = wholes
        stats = whole.stats
        content: list[dict[str, Any]] = []
        for chunk in whole.chunks:
            _append(content, "thinking", chunk.reasoning)
            _append(content, "text", chunk.text)
            content += [
                _tool_use(call, msgspec.json.decode(call.arguments)) for call in chunk.tool_calls
            ]
        called = any(block["type"] == "tool_use" for block in content)
        if stats is None:
            return json(self.head(content))
        ending = {**_ending(stats, called=called), "usage": _usage(stats)}
        return json({**self.head(content), **ending, "dflashd": statistics(stats)})

    def head(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """A message without its end."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }


@final
class MessagesWriter:
    """A streamed answer: blocks one after the other, each begun, filled and ended.

    The prompt's tokens are known at the end only: ``message_delta`` tells them.
    """

    def __init__(self, question: MessagesQuestion) -> None:
        self._question = question
        self._index = 0
        self._open: BlockKind | None = None
        self._called = False

    def begin(self) -> bytes:
        """The message, still empty."""
        start = {"type": "message_start", "message": self._question.head([])}
        return event(start, "message_start") + event({"type": "ping"}, "ping")

    def chunk(self, index: int, chunk: ChunkBody) -> bytes:
        """What a cycle said; empty if that shows nothing."""
        written = b""
        if chunk.reasoning:
            delta = {"type": "thinking_delta", "thinking": chunk.reasoning}
            written += self._into("thinking") + self._delta(delta)
        if chunk.text:
            delta = {"type": "text_delta", "text": chunk.text}
            written += self._into("text") + self._delta(delta)
        for call in chunk.tool_calls:
            written += self._tool_use(call)
        return written

    def end(self, index: int, stats: DoneBody) -> bytes:
        """The last block is complete, and so is the message."""
        ending = {"type": "message_delta", "delta": _ending(stats, called=self._called)}
        told = {**ending, "usage": _usage(stats), "dflashd": statistics(stats)}
        return self._close() + event(told, "message_delta")

    def close(self) -> bytes:
        """Nothing follows."""
        return event({"type": "message_stop"}, "message_stop")

    def failed(self, problem: Problem) -> bytes:
        """It broke off: an error is the last event."""
        return event(_error(problem), "error")

    def _into(self, kind: BlockKind) -> bytes:
        """Be in a block of that kind, perhaps after ending another."""
        if self._open == kind:
            return b""
        ended = self._close()
        self._open = kind
        return ended + self._start(_empty(kind))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        stop = {"type": "content_block_stop", "index": self._index}
        self._index += 1
        return event(stop, "content_block_stop")

    def _start(self, block: dict[str, Any]) -> bytes:
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return event(start, "content_block_start")

    def _delta(self, delta: dict[str, Any]) -> bytes:
        value = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event(value, "content_block_delta")

    def _tool_use(self, call: ToolCall) -> bytes:
        self._called = True
        written = self._close() + self._start(_tool_use(call, {}))
        written += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        stop = {"type": "content_block_stop", "index": self._index}
        self._index += 1
        return written + event(stop, "content_block_stop")


def _empty(kind: BlockKind) -> dict[str, Any]:
    if kind == "text":
        return {"type": "text", "text": ""}
    return {"type": "thinking", "thinking": "", "signature": ""}


def _append(content: list[dict[str, Any]], kind: BlockKind, text: str) -> None:
    if not text:
        return
    if not content or content[-1]["type"] != kind:
        content.append(_empty(kind))
    content[-1][kind] += text


def _tool_use(call: ToolCall, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _ending(stats: DoneBody, *, called: bool) -> dict[str, Any]:
    reason = "max_tokens" if stats.finish_reason == "length" else "end_turn"
    if stats.stop_string is not None:
        reason = "stop_sequence"
    elif called and stats.finish_reason == "stop":
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": stats.stop_string}


def _usage(stats: DoneBody) -> dict[str, int]:
    """Cached tokens are told apart from the others, not among them."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.generated_tokens,
    }


def _error(problem: Problem) -> dict[str, Any]:
    kind = _ERRORS.get(problem.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}
