"""What a user's arguments mean on the wire: one Generate with its body, checked before it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import msgspec

from .codec import decode, decode_body, encode
from .errors import DflashError, ErrorCode
from .messages import ChatMessage, FromClient, Generate, GenerateBody, Sampling, Tool

Turns = Sequence[ChatMessage | Mapping[str, str]]
Speculation = Literal["auto", "strict", "off"]


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of ``generate``; one left out or None is the model's configured default.

    Exactly one of prompt, ``messages`` (turns with ``role`` and ``content``) and ``tokens`` says
    what to continue. ``speculation``: ``strict`` fails where ``auto`` would run plainly.
    ``channels`` takes what the model thinks and the tools it calls out of the text; ``logprobs`` is
    how many likeliest tokens are told of each place, 0 only of the token itself.
    With ``count_only`` nothing is generated: the statistics tell the prompt's tokens.
    """

    messages: Turns | None
    tokens: Sequence[int] | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    speculation: Speculation
    ignore_eos: bool
    tools: Sequence[Tool]
    channels: bool
    thinking: bool | None
    logprobs: int | None
    block_tokens: int | None
    count_only: bool


def generate_body(
    prompt: str | None = None,
    *,
    messages: Turns | None = None,
    tokens: Sequence[int] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    speculation: Speculation = "auto",
    ignore_eos: bool = False,
    tools: Sequence[Tool] = (),
    channels: bool = False,
    thinking: bool | None = None,
    logprobs: int | None = None,
    block_tokens: int | None = None,
    count_only: bool = False,
) -> GenerateBody:
    """Return the body for a user's arguments (see :class:`GenerateOptions`).

    Raises DflashError(bad_request); what only the codec checks, ``generate_frames`` refuses.
    """
    try:
        return GenerateBody(
            prompt=prompt,
            messages=None if messages is None else tuple(_turn(turn) for turn in messages),
            tokens=None if tokens is None else tuple(tokens),
            max_tokens=max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            sampling=Sampling(
                temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed
            ),
            speculation=speculation,
            ignore_eos=ignore_eos,
            tools=tuple(tools),
            channels=channels,
            thinking=thinking,
            logprobs=logprobs,
            block_tokens=block_tokens,
            count_only=count_only,
        )
    except ValueError as error:  # msgspec's ValidationError is one
        raise DflashError(ErrorCode.bad_request, str(error)) from error


def deadline_ms(deadline_s: float | None) -> int | None:
    """Return a deadline as it travels. Raises DflashError(bad_request)."""
    if deadline_s is None:
        return None
    if not 0 <= deadline_s < 2**31 / 1000:
        raise DflashError(ErrorCode.bad_request, f"deadline_s is out of range: {deadline_s}")
    return round(deadline_s * 1000)


def generate_frames(header: Generate, body: GenerateBody) -> list[bytes]:
    """Return the frames of a request after reading them as the daemon will.

    Raises DflashError(bad_request) that names the field.
    """
    frames = encode(header, body)
    _ = decode(frames, FromClient)
    _ = decode_body(GenerateBody, frames[2])
    return frames


def _turn(turn: ChatMessage | Mapping[str, str]) -> ChatMessage:
    return turn if isinstance(turn, ChatMessage) else msgspec.convert(turn, ChatMessage)
