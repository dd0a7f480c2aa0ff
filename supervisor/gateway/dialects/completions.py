"""OpenAI's older ``/v1/completions``: bare prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from ....protocol.messages import ChunkBody, DoneBody
from ..asked import Wanted, Whole
from ..problem import Problem, bad
from ..reading import Neutral, checked_model, refuse_unhonoured, typed
from .openai_answer import OpenAiQuestion, OpenAiWriter
from .openai_fields import CHOICES_LIMIT, COMMON_NEUTRAL, Sampled, error_json
from .openai_logprobs import completion_entries

NEUTRAL: Neutral = {
    **COMMON_NEUTRAL,
    "echo": ((False,), "the prompt is not repeated"),
    "suffix": (("",), "filling in between is not offered"),
}

KIND = "text_completion"


class CompletionRequest(Sampled, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


@final
class Completions:
    """The dialect."""

    def read(self, data: bytes) -> CompletionQuestion:
        """Understand a request body. Raises Problem that names what is wrong."""
        request = typed(data, CompletionRequest)
        _ = checked_model(request.model)
        refuse_unhonoured(request, NEUTRAL)
        _ = request.includes_usage
        if request.best_of not in (None, request.choices):
            raise bad("best_of: choosing among answers is not offered", "best_of")
        if request.logprobs is not None and not 0 <= request.logprobs <= 20:
            raise bad("logprobs: from 0 to 20", "logprobs")
        return CompletionQuestion(request, _wanted(request))

    def error(self, problem: Problem) -> bytes:
        """A refusal as JSON."""
        return error_json(problem)


def _wanted(request: CompletionRequest) -> list[Wanted]:
    """Every prompt's choices together, the first prompt's first."""
    prompts = _prompts(request.prompt)
    if not 1 <= len(prompts) * request.choices <= CHOICES_LIMIT:
        raise bad(f"prompt: 1 to {CHOICES_LIMIT} answers in one request", "prompt")
    wanted: list[Wanted] = []
    for prompt in prompts:
        for choice in range(request.choices):
            options = request.options(choice)
            options.update(max_tokens=request.max_tokens, logprobs=request.logprobs)
            if isinstance(prompt, str):
                wanted.append(Wanted(prompt=prompt, options=options))
            else:
                options["tokens"] = prompt
                wanted.append(Wanted(options=options))
    return wanted


def _prompts(prompt: str | list[str | int | list[int]]) -> Sequence[str | list[int]]:
    """One text, several, one prompt of tokens, or several."""
    if isinstance(prompt, str):
        return [prompt]
    tokens = [each for each in prompt if isinstance(each, int)]
    if tokens and len(tokens) < len(prompt):
        raise bad("prompt: tokens and other prompts in one list", "prompt")
    return [tokens] if tokens else [each for each in prompt if not isinstance(each, int)]


@final
class CompletionQuestion(OpenAiQuestion):
    """One request."""

    def __init__(self, request: CompletionRequest, wanted: Sequence[Wanted]) -> None:
        super().__init__(request, wanted, "cmpl")
        self.logprobs = request.logprobs is not None

    def writer(self) -> CompletionWriter:
        """For a streamed answer."""
        return CompletionWriter(self)

    def answer(self, wholes: Sequence[Whole]) -> bytes:
        """The answer in one piece."""
        return self.whole(KIND, [self._choice(whole) for whole in wholes], wholes)

    def _choice(self, whole: Whole) -> dict[str, Any]:
        logprobs = [each for chunk in whole.chunks for each in chunk.logprobs]
        return {
            "text": whole.text,
            "logprobs": completion_entries(logprobs, 0) if self.logprobs else None,
            "finish_reason": None if whole.stats is None else whole.stats.finish_reason,
        }


@final
class CompletionWriter(OpenAiWriter):
    """A streamed answer."""

    def __init__(self, question: CompletionQuestion) -> None:
        super().__init__(question, KIND)
        self._logprobs = question.logprobs
        self._characters = [0] * len(question.wanted)

    def begin(self) -> bytes:
        """Nothing comes before the first text."""
        return b""

    def chunk(self, index: int, chunk: ChunkBody) -> bytes:
        """What a cycle said; empty if that shows nothing."""
        if not chunk.text and not chunk.logprobs:
            return b""
        logprobs = None
        if self._logprobs:
            logprobs = completion_entries(chunk.logprobs, self._characters[index])
        self._characters[index] += len(chunk.text)
        return self._event(index, {"text": chunk.text}, logprobs=logprobs)

    def end(self, index: int, stats: DoneBody) -> bytes:
        """One choice has its end."""
        return self._ended(index, stats, {"text": ""}, stats.finish_reason)
