"""An iteration over what comes bit by bit."""

from __future__ import annotations

import weakref

import pytest

from dflashd.protocol.reading import Reading


class Owner:
    """What is read from."""


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_it_gives_until_there_is_nothing_more_and_lets_go_when_dropped(taken: int) -> None:
    """None ends it; leaving it, early or not, ends what it came from, which lives as long."""
    left: list[int | None] = [1, 2, None]
    abandoned: list[str] = []
    owner = Owner()
    alive = weakref.ref(owner)
    reading = Reading(owner, lambda: left.pop(0), lambda: abandoned.append("once"))
    del owner
    assert alive() is not None
    assert [item for _, item in zip(range(taken), reading, strict=False)] == [1, 2][:taken]
    assert abandoned == []
    del reading
    assert abandoned == ["once"]
    assert alive() is None
