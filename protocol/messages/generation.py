"""Bodies of requests: what to generate, and what came of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .base import Body, Report
from .fields import Count, Name, Sentence, Text, Token

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]


class Tool(Body, frozen=True, kw_only=True):
    """A function the model may ask to have called. ``parameters``: its JSON Schema, as JSON text
    (schemas nest deeper than an envelope may).
    """

    name: Identifier
    description: Text = ""
    parameters: Text = ""


class ToolCall(Body, frozen=True, kw_only=True):
    """A call the model asked for; ``arguments`` is a JSON object as JSON text."""

    id: Identifier
    name: Identifier
    arguments: Text


class ChatMessage(Body, frozen=True, kw_only=True):
    """One turn of a conversation, for the model's chat template."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: Text
    reasoning: Text = ""
    tool_calls: Annotated[tuple[ToolCall, ...], Meta(max_length=128)] = ()
    tool_call_id: Identifier | None = None
    name: Identifier | None = None


class Sampling(Body, frozen=True, kw_only=True):
    """How tokens are drawn. None means the model's configured default (temperature 0: greedy)."""

    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class GenerateBody(Body, frozen=True, kw_only=True):
    """What to generate. Exactly one of ``prompt``, ``messages``, ``tokens`` is given."""

    prompt: Text | None = None
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=4096)] | None = None
    tokens: Annotated[tuple[Token, ...], Meta(min_length=1, max_length=2**20)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    stop: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=512)], ...], Meta(max_length=16)
    ] = ()
    sampling: Sampling = Sampling()
    speculation: Literal["auto", "strict", "off"] = "auto"
    ignore_eos: bool = False
    tools: Annotated[tuple[Tool, ...], Meta(max_length=128)] = ()
    channels: bool = False
    thinking: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    block_tokens: Annotated[int, Meta(ge=2, le=64)] | None = None
    count_only: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError, which the codec reports as bad_request."""
        if sum(given is not None for given in (self.prompt, self.messages, self.tokens)) != 1:
            raise ValueError("exactly one of prompt, messages, tokens must be given")


class TokenLogprob(Report, frozen=True, kw_only=True):
    """A token, what it writes (perhaps part of a character), its natural log-probability."""

    token: Token
    written: bytes
    logprob: float


class Logprobs(TokenLogprob, frozen=True, kw_only=True):
    """The same of an emitted token, and the likeliest tokens at its place, the likeliest first."""

    top: tuple[TokenLogprob, ...] = ()


class ChunkBody(Report, frozen=True, kw_only=True):
    """Tokens of one decode cycle, and the text they complete (possibly empty).

    With ``channels`` what the model thinks and the calls it asks for are not part of ``text``.
    """

    tokens: tuple[Token, ...]
    text: Text
    reasoning: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()


class DoneBody(Report, frozen=True, kw_only=True):
    """What a finished generation tells about itself."""

    finish_reason: Literal["stop", "length"]
    engine: Literal["dflash", "plain"]
    engine_reason: Sentence = ""
    stop_string: str | None = None
    model: Name
    digest: Annotated[str, Meta(max_length=128)]
    worker_pid: Count
    block_tokens: Count
    cycles: Count
    acceptance_length_tokens: Annotated[float, Meta(ge=0)]
    prompt_tokens: Count
    cached_tokens: Count
    generated_tokens: Count
    queued_ms: Annotated[float, Meta(ge=0)]
    load_ms: Annotated[float, Meta(ge=0)]
    ttft_ms: Annotated[float, Meta(ge=0)]
    prefill_ms: Annotated[float, Meta(ge=0)]
    decode_ms: Annotated[float, Meta(ge=0)]
    memory_bytes: Count
    cache_hit: Annotated[str, Meta(max_length=32)] = "miss"
    cache_miss_reason: Annotated[str, Meta(max_length=32)] = ""
    reasoning_tokens: Count = 0
