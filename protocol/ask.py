"""What a user's arguments mean on the wire: one Generate with its body, checked before it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, Unpack

from .arguments import Seconds, checked
from .messages import ChatMessage, GenerateBody, Sampling, Tool

Turns = Sequence[ChatMessage | Mapping[str, str]]
Speculation = Literal["auto", "strict", "off"]

_SAMPLING = Sampling.__struct_fields__


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


def generate_body(prompt: str | None = None, **options: Unpack[GenerateOptions]) -> GenerateBody:
    """Return the body for a user's arguments (see :class:`GenerateOptions`).

    Raises TypeError for an argument that there is not, and DflashError(bad_request); what only the
    codec checks, ``encode_question`` refuses.
    """
    for name in options:
        if name not in GenerateOptions.__annotations__:
            raise TypeError(f"generate() got an unexpected keyword argument '{name}'")
    given: dict[str, object] = {"prompt": prompt, **options}
    stop = given.get("stop")
    if isinstance(stop, str):
        given["stop"] = (stop,)
    given["sampling"] = {key: given.pop(key) for key in _SAMPLING if key in given}
    body: GenerateBody = checked("", given, GenerateBody)
    return body


def deadline_ms(deadline_s: float | None) -> int | None:
    """Return a deadline as it travels. Raises DflashError(bad_request)."""
    seconds: float | None = checked("deadline_s", deadline_s, Seconds | None)
    return None if seconds is None else round(seconds * 1000)
