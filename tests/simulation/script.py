"""Scripts: seeded, replayable, and shrunk when they fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

SEEDS = 2**31


class Step(NamedTuple):
    """One action, and the seed of all its choices."""

    action: str
    seed: int


class Failure(NamedTuple):
    """A promise that was broken after all steps of ``script``."""

    script: tuple[Step, ...]
    what: str

    def __str__(self) -> str:
        return f"{self.what}\n  python -m tests.simulation --replay '{dumps(self.script)}'"


Replay = Callable[[Sequence[Step]], Failure | None]
"""Takes a script's steps in a new world; what it broke, if anything."""


def dumps(script: Sequence[Step]) -> str:
    """A script as one word."""
    return ",".join(f"{step.action}:{step.seed}" for step in script)


def loads(text: str) -> tuple[Step, ...]:
    """The script of such a word. Raises ValueError."""
    pairs = (part.split(":") for part in text.split(","))
    return tuple(Step(action, int(seed)) for action, seed in pairs)


def written(seed: int, steps: int, weights: dict[str, float], end: str) -> Iterator[Step]:
    """A random script of ``steps`` steps and its end."""
    chance = random.Random(seed)
    names, chances = list(weights), list(weights.values())
    for action in chance.choices(names, chances, k=steps):
        yield Step(action, chance.randrange(SEEDS))
    yield Step(end, chance.randrange(SEEDS))


def shrunk(failure: Failure, replay: Replay, tries: int) -> Failure:
    """A shorter script that fails, too: parts are left out, halves first, single steps last."""
    size = len(failure.script) // 2
    while size:
        begin = 0
        while begin < len(failure.script) and tries:
            script = failure.script
            tries -= 1
            again = replay((*script[:begin], *script[begin + size :]))
            if again is None:
                begin += size
            else:
                failure = again
        size //= 2
    return failure
