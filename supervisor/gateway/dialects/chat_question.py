"""OpenAI's ``/v1/chat/completions``: what is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ....protocol.messages import ChatMessage, Tool, ToolCall
from ..asked import Wanted
from ..problem import bad, unsupported
from ..reading import (
    Neutral,
    checked_model,
    json_object,
    one_of,
    refuse_unhonoured,
    typed,
)
from .openai_fields import COMMON_NEUTRAL, Sampled

NEUTRAL: Neutral = {
    **COMMON_NEUTRAL,
    "response_format": (({"type": "text"},), "answers are not constrained to a format"),
    "parallel_tool_calls": ((True,), "how many calls a model makes at once is its own choice"),
    "modalities": ((["text"],), "only text is offered"),
    "reasoning_effort": (("none",), "only 'none' is offered, which switches thinking off"),
    "store": ((False,), "nothing is stored"),
    "verbosity": ((), "not offered"),
    "audio": ((), "only text is offered"),
    "prediction": ((), "not offered: drafts come from the model's own draft"),
    "web_search_options": ((), "not offered"),
    "functions": ((), "replaced by 'tools'"),
    "function_call": ((), "replaced by 'tool_choice'"),
}


class _Part(Struct, frozen=True, kw_only=True):
    type: str
    text: str | None = None


class _Function(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(Struct, frozen=True, kw_only=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Message(Struct, frozen=True, kw_only=True):
    """Fields beyond these are those that our own answers have and a client sends back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    audio: Any = None
    function_call: Any = None
    refusal: str | None = None


class _Definition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    function: _Definition | None = None


class ChatRequest(Sampled, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request."""

    messages: list[_Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    response_format: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    store: bool | None = None
    verbosity: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None


def read_chat(data: bytes) -> tuple[ChatRequest, Sequence[Wanted]]:
    """Understand a body. Raises Problem that names what is wrong."""
    request = typed(data, ChatRequest)
    _ = checked_model(request.model)
    refuse_unhonoured(request, NEUTRAL)
    _ = request.includes_usage
    if not request.messages:
        raise bad("messages: at least one is needed", "messages")
    messages = tuple(_turn(message, n) for n, message in enumerate(request.messages))
    max_tokens = one_of(
        "max_completion_tokens",
        ("max_completion_tokens", request.max_completion_tokens),
        ("max_tokens", request.max_tokens),
    )
    tools, logprobs = _tools(request), _logprobs(request)
    wanted: list[Wanted] = []
    for choice in range(request.choices):
        options = request.options(choice)
        options.update(messages=messages, max_tokens=max_tokens, tools=tools, channels=True)
        options["logprobs"] = logprobs
        options["thinking"] = False if request.reasoning_effort == "none" else None
        wanted.append(Wanted(options=options))
    return request, wanted


_MESSAGE_NEUTRAL: Neutral = {
    "audio": ((), "only text is offered"),
    "function_call": ((), "replaced by 'tool_calls'"),
    "refusal": (("",), "chat templates know none: say it as 'content'"),
}


def _turn(message: _Message, n: int) -> ChatMessage:
    refuse_unhonoured(message, _MESSAGE_NEUTRAL, f"messages[{n}].")
    if message.content is None and message.role != "assistant":
        raise bad(f"messages[{n}].content: missing", f"messages[{n}].content")
    calls = tuple(
        ToolCall(id=call.id, name=call.function.name, arguments=_arguments(call, n))
        for call in message.tool_calls or ()
    )
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=_text(message.content, f"messages[{n}].content"),
        reasoning=message.reasoning_content or "",
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _arguments(call: _Call, n: int) -> str:
    _ = json_object(call.function.arguments or "{}", f"messages[{n}].tool_calls.arguments")
    return call.function.arguments or "{}"


def _text(content: str | list[_Part] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise unsupported(f"{param}[].type", f"{part.type!r} is not offered, only 'text'")
    return "".join(part.text or "" for part in content)


def _tools(request: ChatRequest) -> tuple[Tool, ...]:
    choice = request.tool_choice
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "only 'auto' and 'none': a call cannot be forced")
    tools: list[Tool] = []
    for n, tool in enumerate(request.tools or ()):
        if tool.type != "function" or tool.function is None:
            raise unsupported(f"tools[{n}].type", f"{tool.type!r} is not offered, only 'function'")
        if tool.function.strict:
            raise unsupported(
                f"tools[{n}].function.strict", "arguments are not constrained to their schema"
            )
        schema = tool.function.parameters
        tools.append(
            Tool(
                name=tool.function.name,
                description=tool.function.description or "",
                parameters="" if schema is None else msgspec.json.encode(schema).decode(),
            )
        )
    return () if choice == "none" else tuple(tools)


def _logprobs(request: ChatRequest) -> int | None:
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise bad("top_logprobs: needs logprobs: true", "top_logprobs")
    if top is not None and not 0 <= top <= 20:
        raise bad("top_logprobs: from 0 to 20", "top_logprobs")
    return (top or 0) if request.logprobs else None
