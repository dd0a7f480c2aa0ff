"""The pure core under seeded random traffic, crashes, hangs, cancels and pauses."""

from __future__ import annotations

import pytest

from .simulated_world import World

STEPS = 2500


@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_after_every_step(seed: int) -> None:
    """Whatever happens, every invariant holds after each step and every question is answered."""
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle_down()


@pytest.mark.parametrize("seed", range(100, 120))
def test_shutdown_leaves_nothing(seed: int) -> None:
    """From any state a shutdown ends in bounded time, with no process and no open question."""
    world = World(seed)
    for _ in range(300 + seed):
        world.step()
    world.shut_down(by_signal=bool(seed % 2))


def test_simulation_reaches_the_interesting_ends() -> None:
    """The random traffic really meets success, cancel, loss, overload, deadline and failure."""
    seen: set[str] = set()
    for seed in range(200, 206):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        seen |= world.seen
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
        "spawn:done",
        "spawn:load_failed",
        "spawn:cancelled",
        "retire:done",
    }
