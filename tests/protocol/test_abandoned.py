"""A generation nobody waits for any more is cancelled in the daemon."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from dflashd.protocol import AsyncClient, DflashError, ErrorCode
from dflashd.protocol.messages import Cancel, Generate, Spawn

from .scripted_daemon import ScriptedDaemon
from .test_async_client import run

Leave = Callable[[AsyncClient], Awaitable[None]]


async def _break(client: AsyncClient) -> None:
    async for _ in client.generate("m", "forever"):
        break


async def _break_and_keep(client: AsyncClient) -> None:
    generation = client.generate("m", "forever")
    async for _ in generation:
        break
    with pytest.raises(DflashError) as failed:
        await generation.wait()
    assert failed.value.code is ErrorCode.cancelled


async def _raise(client: AsyncClient) -> None:
    async def read() -> None:
        async for chunk in client.generate("m", "forever"):
            raise ZeroDivisionError(chunk.text)

    with pytest.raises(ZeroDivisionError):
        await read()


async def _drop(client: AsyncClient) -> None:
    client.generate("m", "forever")
    gc.collect()


async def _leave_context(client: AsyncClient) -> None:
    async with client.generate("m", "forever") as generation:
        await anext(aiter(generation))


async def _cancel_task(client: AsyncClient) -> None:
    generation = client.generate("silent", "x")
    task = asyncio.create_task(generation.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _time_out(client: AsyncClient) -> None:
    async def read() -> None:
        async for _ in client.generate("silent", "x"):
            pass

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(), 0.05)


async def _cancel(client: AsyncClient) -> None:
    generation = client.generate("m", "forever")
    await anext(aiter(generation))
    await generation.cancel()
    assert generation.ended


async def _close(client: AsyncClient) -> None:
    generation = client.generate("silent", "x")
    await client.close()
    with pytest.raises(DflashError, match="the client was closed"):
        await generation.wait()


WAYS = [
    _break,
    _break_and_keep,
    _raise,
    _drop,
    _leave_context,
    _cancel_task,
    _time_out,
    _cancel,
    _close,
]


@pytest.mark.parametrize("leave", WAYS, ids=lambda leave: leave.__name__.strip("_"))
def test_leaving_a_generation_cancels_it_in_the_daemon(
    daemon: ScriptedDaemon, leave: Leave
) -> None:
    """However a generation is left, the daemon is told once, while the client goes on."""

    async def scenario(client: AsyncClient) -> None:
        await leave(client)
        await asyncio.to_thread(daemon.expect, Cancel)

    run(daemon.endpoints.runtime_dir, scenario)
    generate, cancels = daemon.expect(Generate)[0], daemon.expect(Cancel)
    assert cancels == [Cancel(id=generate.id)]


def test_generation_in_use_is_kept(daemon: ScriptedDaemon) -> None:
    """Iterating over a generation without a name of its own does not cancel it."""

    async def scenario(client: AsyncClient) -> None:
        count = 0
        async for _ in client.generate("m", "200"):
            count += 1
            if count % 50 == 0:
                gc.collect()
        assert count == 200

    run(daemon.endpoints.runtime_dir, scenario)
    assert not [header for header in daemon.received if isinstance(header, Cancel)]


def test_finished_generation_is_not_cancelled(daemon: ScriptedDaemon) -> None:
    """Leaving a generation that has ended sends nothing, and keeps what was not read."""

    async def scenario(client: AsyncClient) -> None:
        async with client.generate("m", "3") as generation:
            while not generation.ended:
                await client.status()
            async for _ in generation:
                break
        assert (await generation.wait()).text == "0 1 2 "
        await generation.cancel()

    run(daemon.endpoints.runtime_dir, scenario)
    assert not [header for header in daemon.received if isinstance(header, Cancel)]


def test_unread_generation_is_cancelled_when_the_client_leaves(daemon: ScriptedDaemon) -> None:
    """Leaving the client's context cancels what still runs before the connection closes."""

    async def scenario(client: AsyncClient) -> None:
        kept.append(client.generate("m", "forever"))
        await asyncio.to_thread(daemon.expect, Generate)

    kept: list[object] = []
    run(daemon.endpoints.runtime_dir, scenario)
    daemon.expect(Cancel)


def test_cancelled_spawn_is_cancelled_in_the_daemon(daemon: ScriptedDaemon) -> None:
    """A spawn whose caller is cancelled is taken back on the control channel."""

    async def scenario(client: AsyncClient) -> None:
        task = asyncio.create_task(client.spawn("slow"))
        await asyncio.to_thread(daemon.expect, Spawn)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(daemon.expect, Cancel)

    run(daemon.endpoints.runtime_dir, scenario)


def test_chunks_of_an_abandoned_generation_are_dropped(daemon: ScriptedDaemon) -> None:
    """Chunks that were on their way when a generation was left reach nobody and do no harm."""

    async def scenario(client: AsyncClient) -> None:
        for _ in range(20):
            await _break(client)
        assert (await client.generate("m", "100").wait()).text.endswith("99 ")

    run(daemon.endpoints.runtime_dir, scenario)
