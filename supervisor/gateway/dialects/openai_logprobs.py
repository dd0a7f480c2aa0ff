"""Log-probabilities as OpenAI's interfaces write them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....protocol.messages import Logprobs, TokenLogprob


def chat_entries(told: Sequence[Logprobs]) -> list[dict[str, Any]]:
    """``logprobs.content`` of a chat answer."""
    return [
        {**_entry(each), "top_logprobs": [_entry(other) for other in each.top]} for each in told
    ]


def completion_entries(told: Sequence[Logprobs], offset: int) -> dict[str, Any]:
    """``logprobs`` of a completion; ``offset``: characters before it."""
    offsets: list[int] = []
    for each in told:
        offsets.append(offset)
        offset += len(_text(each))
    return {
        "tokens": [_text(each) for each in told],
        "token_logprobs": [each.logprob for each in told],
        "top_logprobs": [{_text(other): other.logprob for other in each.top} for each in told],
        "text_offset": offsets,
    }


def _entry(told: TokenLogprob) -> dict[str, Any]:
    return {"token": _text(told), "logprob": told.logprob, "bytes": list(told.written)}


def _text(told: TokenLogprob) -> str:
    return told.written.decode("utf-8", "replace")
