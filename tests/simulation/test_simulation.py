"""The pure core under seeded random traffic, commands, crashes, hangs, cancels and sleep."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .running import ENDS, replay, searched
from .script import Failure, Step, dumps, loads, shrunk, written
from .world import LOUD, World

pytestmark = pytest.mark.slow

PARTS = 8
STEPS = 25_000
"""Of each part: two hundred thousand steps in all."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_after_every_step(part: int) -> None:
    """Whatever happens, every invariant holds after each step, and everything asked ends."""
    failure = searched(part * 10_000, STEPS)
    assert failure is None, str(failure)


def test_simulation_reaches_the_interesting_ends() -> None:
    """The random traffic really meets success, cancel, loss, overload, deadline and failure."""
    seen: set[str] = set()
    for seed in range(6):
        world = World()
        for step in written(seed, 2500, LOUD, ENDS[0]):
            world.take(step)
        seen |= world.clients.seen
    assert seen >= {
        "generate:done",
        "generate:cancelled",
        "generate:worker_lost",
        "generate:overloaded",
        "generate:deadline",
        "generate:not_found",
        "generate:load_failed",
        "generate:worker_restarting",
        "generate:slow_consumer",
        "generate:internal",
        "generate:out_of_memory",
        "generate:protocol",
        "spawn:done",
        "spawn:load_failed",
        "spawn:cancelled",
        "retire:done",
        "cache:done",
    }


def test_script_decides_everything() -> None:
    """The same script tells the core the same, event by event; also when it went through text."""
    script = tuple(written(3, 500, LOUD, ENDS[1]))
    told: list[str] = []
    for steps in (script, loads(dumps(script))):
        world = World()
        for step in steps:
            world.take(step)
        told.append(repr(world.events))
    assert told[0] == told[1]
    assert replay(script) is None


def test_failing_script_is_shrunk_to_what_it_needs() -> None:
    """Of hundreds of steps those are left without which the promise is not broken."""

    def looked_twice(script: Sequence[Step]) -> Failure | None:
        looks = sum(step.action == "look" for step in script)
        return Failure(tuple(script), "looked twice") if looks >= 2 else None

    long = looked_twice(tuple(written(5, 1000, LOUD, ENDS[0])))
    assert long is not None
    short = shrunk(long, looked_twice, tries=1000)
    assert [step.action for step in short.script] == ["look", "look"]
