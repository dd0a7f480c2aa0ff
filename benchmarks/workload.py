"""What every decoding benchmark runs: the embedded pair, and a few prompts of different kinds."""

from __future__ import annotations

from dflashd.protocol.messages import ChatMessage, GenerateBody, LoadBody
from dflashd.worker.errand import Errand

PAIR = LoadBody(target="smollm2-135m", draft="smollm2-135m-dflash")
TOKENS = 64
PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, with a short explanation.",
    "Explain in a few sentences why the sky is blue.",
    "List five things to take along on a day in the mountains.",
    "Write a short story about a lighthouse keeper and a lost ship.",
)


def _silent(stage: str, done: int, total: int, unit: str) -> None:
    pass


SILENCE = Errand(_silent)
"""Benchmarks load in silence, and nobody calls a load off."""


def body(prompt: str) -> GenerateBody:
    """A greedy request of fixed length, drafted or refused."""
    return GenerateBody(
        messages=(ChatMessage(role="user", content=prompt),),
        max_tokens=TOKENS,
        ignore_eos=True,
        speculation="strict",
    )
