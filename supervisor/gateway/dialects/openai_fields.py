"""What both of OpenAI's interfaces share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ....protocol.ask import GenerateOptions
from ....protocol.messages import DoneBody
from ..asked import Whole
from ..events import json
from ..problem import Problem, bad
from ..reading import Neutral, Vendor

CHOICES_LIMIT = 16
"""Of one request, its prompts together."""

COMMON_NEUTRAL: Neutral = {
    "frequency_penalty": ((0,), "penalties are not offered, since they change what is verified"),
    "presence_penalty": ((0,), "penalties are not offered, since they change what is verified"),
    "repetition_penalty": ((1,), "penalties are not offered, since they change what is verified"),
    "logit_bias": (({},), "biases are not offered, since they change what is verified"),
    "service_tier": (("auto", "default"), "there is one tier only"),
}
"""Labels (``user``, ``metadata``, ``prompt_cache_key`` …) are not here: they ask for nothing."""


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``stream_options``."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Sampled(Struct, frozen=True, kw_only=True):
    """The parameters that both interfaces have."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    dflashd: Vendor | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    service_tier: str | None = None

    @property
    def choices(self) -> int:
        """How many answers to one prompt. Raises Problem."""
        n = 1 if self.n is None else self.n
        if not 1 <= n <= CHOICES_LIMIT:
            raise bad(f"n: from 1 to {CHOICES_LIMIT}", "n")
        return n

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage. Raises Problem."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise bad("stream_options: only of a stream", "stream_options")
        return self.stream_options.include_usage

    def options(self, choice: int) -> GenerateOptions:
        """For the client library; each choice of a seeded request has a seed of its own."""
        options: GenerateOptions = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": None if self.seed is None else self.seed + choice,
            "stop": self.stop or (),
        }
        if self.dflashd is not None:
            options["speculation"] = self.dflashd.speculation
        return options


def usage(stats: Sequence[DoneBody], choices: int) -> dict[str, Any]:
    """Tokens of a request; each prompt counts once, however many answers it got."""
    prompts = stats[::choices]
    prompt_tokens = sum(each.prompt_tokens for each in prompts)
    generated = sum(each.generated_tokens for each in stats)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
        "completion_tokens_details": {"reasoning_tokens": sum(s.reasoning_tokens for s in stats)},
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompts)},
    }


def finished(wholes: Sequence[Whole]) -> list[DoneBody]:
    """The statistics of generations that have all succeeded."""
    return [whole.stats for whole in wholes if whole.stats is not None]


def error(problem: Problem) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(problem.status)
    if kind is None:
        kind = "invalid_request_error" if problem.status < 500 else "server_error"
    told = {"message": problem.message, "type": kind}
    return {"error": {**told, "param": problem.param, "code": problem.code}}


def error_json(problem: Problem) -> bytes:
    """The same as a body."""
    return json(error(problem))
