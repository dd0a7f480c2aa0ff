"""What a request asks, as tokens."""

from __future__ import annotations

import contextlib
from typing import Any

from jinja2 import TemplateError

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import ChatMessage, GenerateBody
from .channels import call_arguments, tool_definitions

MOST_CHARACTERS_PER_TOKEN = 32
"""Of a prompt that fits; what people write has four or so."""

ALWAYS_READ_CHARACTERS = 2**18
"""So much is read of any prompt: a second's work at the most."""


def encode(
    tokenizer: Any,
    body: GenerateBody,
    vocab_size: int | None = None,
    context_tokens: int | None = None,
) -> list[int]:
    """What ``body`` asks as token ids, at least one.

    Raises DflashError: bad_request, or unsupported for messages without a chat template.
    ``vocab_size`` is the model's: a given token beyond it would read foreign memory. A prompt that
    is far beyond ``context_tokens`` is not tokenised: nobody else is served meanwhile.
    """
    if context_tokens is not None:
        _refuse_endless(body, context_tokens)
    if body.messages is None and (body.tools or body.channels or body.thinking is not None):
        raise DflashError(
            ErrorCode.bad_request, "tools, channels and thinking need messages: a prompt has none"
        )
    if body.messages is not None:
        tokens = _encode_messages(tokenizer, body, body.messages)
    elif body.prompt is not None:
        tokens = _encode_prompt(tokenizer, body.prompt)
    else:
        tokens = list(body.tokens or ())
    if not tokens:
        raise DflashError(ErrorCode.bad_request, "the prompt is empty: it has no tokens")
    if vocab_size is not None and max(tokens) >= vocab_size:
        raise DflashError(
            ErrorCode.bad_request,
            f"token {max(tokens)} does not exist: the model's vocabulary has {vocab_size}",
        )
    return tokens


def _refuse_endless(body: GenerateBody, context_tokens: int) -> None:
    texts = [body.prompt or ""]
    for message in body.messages or ():
        calls = [call.arguments for call in message.tool_calls]
        texts += [message.content, message.reasoning, *calls]
    texts += [f"{tool.description}{tool.parameters}" for tool in body.tools]
    characters = sum(map(len, texts))
    if characters > max(ALWAYS_READ_CHARACTERS, MOST_CHARACTERS_PER_TOKEN * context_tokens):
        raise DflashError(
            ErrorCode.bad_request,
            f"the prompt has {characters} characters, the model a context of {context_tokens} "
            "tokens: shorten it",
        )


def _encode_messages(
    tokenizer: Any, body: GenerateBody, messages: tuple[ChatMessage, ...]
) -> list[int]:
    if not tokenizer.has_chat_template:
        raise DflashError(
            ErrorCode.unsupported,
            "this model has no chat template: send a prompt instead of messages",
        )
    turns = [_turn(message) for message in messages]
    options = _template_options(tokenizer, body, turns)
    try:
        return _rendered(tokenizer, turns, options)
    except (TemplateError, *_UNFIT) as error:
        raise DflashError(
            ErrorCode.bad_request, f"the model's chat template refuses these messages: {error}"
        ) from error


_UNFIT = (KeyError, TypeError, ValueError)
"""What a template ends in over a shape of turns it was not written for."""


def _rendered(
    tokenizer: Any,
    turns: list[dict[str, Any]],
    options: dict[str, Any],
    *,
    answer_begins: bool = True,
) -> list[int]:
    return list(
        tokenizer.apply_chat_template(turns, add_generation_prompt=answer_begins, **options)
    )


def _written(tokenizer: Any, turns: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """The same as text, which is had much sooner."""
    return tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=False, **options
    )


def _turn(message: ChatMessage) -> dict[str, Any]:
    """A turn as chat templates know it; what is not there is not mentioned."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call_arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn


def _template_options(
    tokenizer: Any, body: GenerateBody, turns: list[dict[str, Any]]
) -> dict[str, Any]:
    options: dict[str, Any] = {"tools": tool_definitions(body.tools)} if body.tools else {}
    if body.thinking is None:
        return options
    asked = {**options, "enable_thinking": body.thinking}
    other = {**options, "enable_thinking": not body.thinking}
    with contextlib.suppress(TemplateError, *_UNFIT):
        same = _written(tokenizer, turns, asked) == _written(tokenizer, turns, other)
        if same and (body.thinking or tokenizer.has_thinking):
            raise DflashError(
                ErrorCode.unsupported,
                "this model's chat template does not let thinking be switched "
                + ("on" if body.thinking else "off"),
            )
    return asked


def _encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """As it is, with the tokenizer's own beginning (BOS) unless the prompt brings it."""
    begins = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
    return list(tokenizer.encode(prompt, add_special_tokens=not begins))


def turn_borders(tokenizer: Any, body: GenerateBody, prompt: list[int]) -> tuple[int, ...]:
    """Where other prompts of this conversation, or of this system part, may part from this one.

    Found by rendering: with another first user turn (what is before it is shared by all
    conversations), and without the begin of the answer (templates render what follows anew when
    the answer is part of the history).
    """
    if body.messages is None:
        return ()
    turns = [_turn(message) for message in body.messages]
    options = _template_options(tokenizer, body, turns)
    first_user = next((n for n, turn in enumerate(turns) if turn["role"] == "user"), None)
    variants: list[list[int]] = []
    try:
        if first_user is not None:
            other = [*turns[:first_user], {"role": "user", "content": "\x01"}]
            variants.append(_rendered(tokenizer, other, options))
        variants.append(_rendered(tokenizer, turns, options, answer_begins=False))
    except (TemplateError, *_UNFIT):
        return ()
    return tuple(_common(prompt, variant) for variant in variants)


def _common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
