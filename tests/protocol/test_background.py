"""Ctrl-C at the worst moments of a blocking call leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Generator
from typing import Any

import pytest

from dflashd.protocol.background import BackgroundLoop

LIMIT_S = 10.0


@pytest.fixture
def background() -> Generator[BackgroundLoop]:
    async def nothing() -> None: ...

    running = BackgroundLoop("under-test")
    yield running
    running.end(nothing)


async def one() -> int:
    return 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_interrupted_around_the_hand_over(
    background: BackgroundLoop, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Ctrl-C just before or after work is handed to the loop: no coroutine is lost, no work runs
    on, and the loop is as good as before.
    """
    started, ended = threading.Event(), threading.Event()
    original = background._loop.call_soon_threadsafe

    async def long() -> None:
        try:
            await asyncio.sleep(LIMIT_S)
        finally:
            ended.set()

    def interrupted(*arguments: Any) -> None:
        monkeypatch.undo()
        if after:
            original(*arguments)
            original(started.set)
            assert started.wait(LIMIT_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(background._loop, "call_soon_threadsafe", interrupted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            background.run(long)
    assert ended.wait(LIMIT_S) if after else not ended.is_set()
    assert background.run(one) == 1
    assert not background._waiting


def test_failures_and_ends_reach_the_caller(background: BackgroundLoop) -> None:
    """What work raises is raised to whoever waits for it."""

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        background.run(fail)
