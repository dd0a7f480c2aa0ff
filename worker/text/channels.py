"""An answer's text told apart: what is said, what the model thinks, the tools it calls.

Which marks a model uses, and how it writes a call, is mlx-lm's knowledge: its text state machine
and its tool parsers are used as they are.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.generate import TextStateMachine, make_text_state_machine

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import GenerateBody, Tool, ToolCall
from ..log import line, log

_SPEECH, _REASONING, _TOOL = "normal", "reasoning", "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of an answer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __add__(self, other: Part) -> Part:
        return Part(
            text=self.text + other.text,
            reasoning=self.reasoning + other.reasoning,
            tool_calls=self.tool_calls + other.tool_calls,
        )


def open_channels(tokenizer: Any, body: GenerateBody, prompt: Sequence[int]) -> Channels | None:
    """What tells the answer to ``body`` apart; None where nobody asked for that.

    Raises DflashError(unsupported) for tools that the model cannot call.
    """
    if body.tools and not tokenizer.has_tool_calling:
        raise DflashError(
            ErrorCode.unsupported,
            "this model cannot be given tools: mlx-lm knows no tool calls in its chat template",
        )
    if not body.channels or body.messages is None:
        return None
    return Channels(tokenizer, body.tools, thinks=_begins_thinking(tokenizer, prompt))


def tool_definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in the form that chat templates and tool parsers take."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _json_object(
                    tool.parameters or "{}", f"the parameters of {tool.name}"
                ),
            },
        }
        for tool in tools
    ]


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments of an earlier call, for the template. Raises DflashError(bad_request)."""
    return _json_object(call.arguments, f"the arguments of tool call {call.id}")


class Channels:
    """One answer. Its parts are what the model wrote, without the marks between them."""

    def __init__(self, tokenizer: Any, tools: Sequence[Tool], *, thinks: bool) -> None:
        self._tokenizer = tokenizer
        self._tools = tool_definitions(tools)
        machine = make_text_state_machine(tokenizer)
        first = tokenizer.response_initial_state or (_REASONING if thinks else _SPEECH)
        self._state: Any = machine.make_state(initial=first)
        self.reasoning_tokens = 0
        """Tokens that were part of what the model thinks, or of the marks around it."""
        self._call: str | None = None
        """What is written so far of a call; None outside one."""

    def token(self, text: str) -> Part:
        """Take the text that one token completes, perhaps none."""
        thought = self._state[0] == _REASONING
        part = self.push(text)
        self.reasoning_tokens += thought or self._state[0] == _REASONING
        return part

    def push(self, text: str) -> Part:
        """Take more text; what may be the beginning of a mark is held back."""
        if not text or self._state[0] is None:  # None: the model closed its whole message
            return Part()
        self._state, segments = TextStateMachine.split(self._state, text)
        part = Part()
        for n, (state, piece) in enumerate(segments):
            part += self._take(state, piece)
            if state == _TOOL and n + 1 < len(segments):
                part += self._close_call()
        return part

    def finish(self) -> Part:
        """The rest, at the end."""
        self._state, rest, state = TextStateMachine.flush(self._state)
        part = self._take(state, rest)
        return part + self._close_call(at_end=True)

    def _take(self, state: str | None, piece: str) -> Part:
        if state == _TOOL:
            self._call = (self._call or "") + piece
            return Part()
        if state == _REASONING:
            return Part(reasoning=piece)
        # Some formats have headers between their messages, which are nobody's to read.
        return Part(text=piece) if state == _SPEECH else Part()

    def _close_call(self, *, at_end: bool = False) -> Part:
        """A call is complete: parsed if it was offered tools and can be, else text as written."""
        written, self._call = self._call, None
        if written is None:
            return Part()
        end = self._tokenizer.tool_call_end
        complete = not (at_end and end)
        calls = _parsed(self._tokenizer, written, self._tools) if self._tools and complete else ()
        if calls:
            return Part(tool_calls=calls)
        closing = "" if at_end else end
        return Part(text=f"{self._tokenizer.tool_call_start}{written}{closing}")


def _parsed(tokenizer: Any, written: str, tools: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    try:
        found: Any = tokenizer.tool_parser(written, tools)
        entries: list[Any] = found if isinstance(found, list) else [found]
        return tuple(_call(entry) for entry in entries)
    except Exception as error:  # noqa: BLE001 - a model wrote it, and parsers raise what they like
        log.info(line("tool_call_unreadable", reason=error))
        return ()


def _call(entry: Any) -> ToolCall:
    arguments: Any = entry["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of a call are no object")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)  # Python reads NaN; JSON not
    _ = text.encode()  # half a surrogate pair is no text
    return ToolCall(
        id=str(entry.get("id") or f"call_{secrets.token_hex(12)}")[:128],
        name=str(entry["name"])[:128],
        arguments=text,
    )


def _begins_thinking(tokenizer: Any, prompt: Sequence[int]) -> bool:
    """Whether the template itself opened the model's thinking."""
    if not tokenizer.has_thinking:
        return False
    return tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)


def _json_object(text: str, what: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DflashError(ErrorCode.bad_request, f"{what} are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DflashError(ErrorCode.bad_request, f"{what} are not a JSON object")
    return value
