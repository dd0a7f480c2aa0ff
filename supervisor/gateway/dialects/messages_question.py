"""Anthropic's ``/v1/messages``: what is asked. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from ....protocol.ask import GenerateOptions
from ....protocol.messages import ChatMessage, Tool, ToolCall
from ..asked import Wanted
from ..problem import bad, unsupported
from ..reading import Neutral, Vendor, checked_model, refuse_unhonoured, typed

PROMPT_NEUTRAL: Neutral = {
    "mcp_servers": (([],), "not offered"),
    "context_management": ((), "not offered"),
    "output_config": (({},), "answers are not constrained"),
    "output_format": ((), "answers are not constrained to a format"),
}
NEUTRAL: Neutral = {
    **PROMPT_NEUTRAL,
    "service_tier": (("auto", "standard_only"), "there is one tier only"),
    "container": ((), "not offered"),
}


class _Block(Struct, frozen=True, kw_only=True):
    """A content block of any type; ``cache_control`` asks for what our cache does anyway."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[_Block] | None = None
    is_error: bool | None = None


class _Message(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``cache_control`` and ``eager_input_streaming`` ask for nothing that would differ here."""

    name: str
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class CountRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to count a prompt's tokens: what makes the prompt."""

    model: str
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    cache_control: dict[str, Any] | None = None
    mcp_servers: Any = None
    context_management: Any = None
    output_config: Any = None
    output_format: Any = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    dflashd: Vendor | None = None
    service_tier: str | None = None
    container: Any = None


def read_count(data: bytes) -> tuple[str, Wanted]:
    """Understand a body to count: the model, and what to ask it. Raises Problem."""
    request = typed(data, CountRequest)
    options = _prompt_options(request, PROMPT_NEUTRAL)
    return request.model, Wanted(options={**options, "max_tokens": 1, "count_only": True})


def read_messages(data: bytes) -> tuple[MessagesRequest, Wanted]:
    """Understand a body. Raises Problem that names what is wrong."""
    request = typed(data, MessagesRequest)
    options: GenerateOptions = {
        **_prompt_options(request, NEUTRAL),
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences or (),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
    }
    if request.dflashd is not None:
        options["speculation"] = request.dflashd.speculation
    return request, Wanted(options=options)


def _prompt_options(request: CountRequest, neutral: Neutral) -> GenerateOptions:
    """What the model is given to read. Raises Problem."""
    _ = checked_model(request.model)
    refuse_unhonoured(request, neutral)
    if not request.messages:
        raise bad("messages: at least one is needed", "messages")
    turns: list[ChatMessage] = []
    if request.system:
        turns.append(ChatMessage(role="system", content=_text(request.system, "system")))
    for n, message in enumerate(request.messages):
        turns += _turns(message, f"messages[{n}].content")
    return {
        "messages": turns,
        "tools": _tools(request),
        "thinking": _thinking(request),
        "channels": True,
    }


def _text(content: str | list[_Block], param: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of(block, f"{param}[{n}]") for n, block in enumerate(content))


def _text_of(block: _Block, param: str) -> str:
    if block.type != "text" or block.text is None:
        raise unsupported(f"{param}.type", f"{block.type!r} is not offered here, only 'text'")
    return block.text


def _turns(message: _Message, param: str) -> list[ChatMessage]:
    """A message as turns: results of tools are turns of their own in chat templates."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results: list[ChatMessage] = []
    calls: list[ToolCall] = []
    text: list[str] = []
    reasoning: list[str] = []
    for n, block in enumerate(message.content):
        place = f"{param}[{n}]"
        match block.type, message.role:
            case "tool_use", "assistant":
                calls.append(_call(block, place))
            case "thinking", "assistant":
                reasoning.append(block.thinking or "")
            case "redacted_thinking", "assistant":
                raise unsupported(f"{place}.type", "thinking of another service cannot be read")
            case "tool_result", "user":
                results.append(_result(block, place))
            case _:
                text.append(_text_of(block, place))
    if not (text or calls or reasoning):
        return results
    said = ChatMessage(
        role=message.role,
        content="".join(text),
        reasoning="".join(reasoning),
        tool_calls=tuple(calls),
    )
    return [*results, said]


def _call(block: _Block, param: str) -> ToolCall:
    if not block.id or not block.name:
        raise bad(f"{param}: a tool_use needs an id and a name", param)
    arguments = msgspec.json.encode(block.input or {}).decode()
    return ToolCall(id=block.id, name=block.name, arguments=arguments)


def _result(block: _Block, param: str) -> ChatMessage:
    if not block.tool_use_id:
        raise bad(f"{param}.tool_use_id: missing", param)
    content = block.content or ""
    if not isinstance(content, str):
        content = _text(content, f"{param}.content")
    if block.is_error:
        content = f"Error: {content}"
    return ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)


def _tools(request: CountRequest) -> tuple[Tool, ...]:
    choice = request.tool_choice
    if choice is not None and choice.type not in ("auto", "none"):
        raise unsupported("tool_choice", "only 'auto' and 'none': a call cannot be forced")
    if choice is not None and choice.disable_parallel_tool_use:
        raise unsupported(
            "tool_choice.disable_parallel_tool_use",
            "how many calls a model makes at once is its own choice",
        )
    tools: list[Tool] = []
    for n, tool in enumerate(request.tools or ()):
        if tool.type not in (None, "custom") or tool.input_schema is None:
            raise unsupported(f"tools[{n}].type", "only tools of your own are offered")
        if tool.strict:
            raise unsupported(f"tools[{n}].strict", "arguments are not constrained to their schema")
        schema = msgspec.json.encode(tool.input_schema).decode()
        tools.append(Tool(name=tool.name, description=tool.description or "", parameters=schema))
    return () if choice is not None and choice.type == "none" else tuple(tools)


def _thinking(request: CountRequest) -> bool | None:
    if request.thinking is None:
        return None
    if request.thinking.display == "omitted":
        raise unsupported("thinking.display", "what a model thinks is always told")
    if request.thinking.type == "adaptive":
        return None
    if request.thinking.type == "enabled":
        raise unsupported(
            "thinking.budget_tokens", "a budget cannot be enforced: use 'adaptive' or 'disabled'"
        )
    return False
