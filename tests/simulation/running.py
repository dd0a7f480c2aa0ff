"""Running scripts: one, many, and the shortest that fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from .script import Failure, Step, shrunk, written
from .world import LOUD, World

SHRINK_TRIES = 600
ENDS = ("settle", "shut_down")


def replay(script: Iterable[Step]) -> Failure | None:
    """Take a script's steps in a new world; what it broke, if anything."""
    world, taken = World(), list[Step]()
    for step in script:
        taken.append(step)
        try:
            world.take(step)
        except Exception as error:  # noqa: BLE001 - a mistake of the core's is what we look for
            return Failure(tuple(taken), described(error))
    return None


def described(error: Exception) -> str:
    """A broken promise, and where it was seen."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno} {place.name}"
    return f"{type(error).__name__}: {error} ({where})"


def searched(first_seed: int, steps: int) -> Failure | None:
    """Run scripts of growing length, ``steps`` in all; a shrunk failure."""
    seed = first_seed
    while steps > 0:
        length = min(steps, 200 + 200 * (seed - first_seed) % 3000)
        failure = replay(written(seed, length, LOUD, ENDS[seed % len(ENDS)]))
        if failure is not None:
            return shrunk(failure, replay, SHRINK_TRIES)
        steps -= length
        seed += 1
    return None


def story(script: Iterable[Step], tell: Callable[[str], None]) -> None:
    """Tell what the core was told, event by event, up to the broken promise."""
    world = World()
    for step in script:
        before = len(world.events)
        try:
            world.take(step)
        except Exception as error:  # noqa: BLE001 - see above
            tell(described(error))
            return
        finally:
            for now, event in world.events[before:]:
                tell(f"{now:10.2f}  {step.action:16} {event}")
