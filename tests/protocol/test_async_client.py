"""What the asynchronous client promises while the daemon behaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dflashd.protocol import AsyncClient, ChatMessage, DflashError, ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    AddCredit,
    Event,
    Generate,
    Hello,
    Retire,
    Shutdown,
)

from .scripted_daemon import SNAPSHOT, STATS, WAIT_S, ScriptedDaemon

Scenario = Callable[[AsyncClient], Awaitable[None]]


def run(runtime_dir: Path, scenario: Scenario, **options: Any) -> None:
    """Run ``scenario`` with an open client, within a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S), AsyncClient(runtime_dir, **options) as client:
            await scenario(client)

    asyncio.run(bounded())


def test_chunks_come_in_order_and_statistics_last(daemon: ScriptedDaemon) -> None:
    """Iterating yields every chunk once, in order, and then the statistics are there."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate("m", "500")
        assert generation.stats is None
        assert len(generation.id) == 16
        texts = [chunk.text async for chunk in generation]
        assert texts == [f"{n} " for n in range(500)]
        assert generation.stats == STATS

    run(daemon.endpoints.runtime_dir, scenario)


def test_wait_returns_the_whole(daemon: ScriptedDaemon) -> None:
    """Waiting gives text, tokens and statistics, whatever was iterated over before."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate("m", "3")
        chunks = aiter(generation)
        assert (await anext(chunks)).text == "0 "
        completion = await generation.wait()
        assert completion.text == "0 1 2 "
        assert completion.tokens == (0, 0, 1, 1, 2, 2)
        assert completion.stats == STATS
        assert await generation.wait() == completion

    run(daemon.endpoints.runtime_dir, scenario)


def test_two_generations_interleave(daemon: ScriptedDaemon) -> None:
    """Two generations of one client run at the same time and do not mix."""

    async def scenario(client: AsyncClient) -> None:
        first, second = aiter(client.generate("a", "200")), aiter(client.generate("b", "200"))
        for n in range(200):
            assert (await anext(first)).text == (await anext(second)).text == f"{n} "

    run(daemon.endpoints.runtime_dir, scenario)


def test_many_generations_at_once(daemon: ScriptedDaemon) -> None:
    """A hundred generations of one client all arrive whole."""

    async def scenario(client: AsyncClient) -> None:
        waits = [client.generate("m", str(n)).wait() for n in range(100)]
        for n, completion in enumerate(await asyncio.gather(*waits)):
            assert len(completion.tokens) == 2 * n

    run(daemon.endpoints.runtime_dir, scenario)


def test_slow_reader_bounds_the_sender(daemon: ScriptedDaemon) -> None:
    """A reader that stops has at most a window of chunks sent to it, then gets the rest."""

    async def scenario(client: AsyncClient) -> None:
        slow = client.generate("m", "300")
        chunks = aiter(slow)
        await anext(chunks)
        # Another stream's whole life is time enough for the slow one to overrun its window.
        assert len((await client.generate("m", "300").wait()).tokens) == 600
        assert daemon.sent_chunks <= 300 + 64
        assert len((await slow.wait()).tokens) == 600
        grants = [header.chunks for header in daemon.expect(AddCredit)]
        assert set(grants) == {32}

    run(daemon.endpoints.runtime_dir, scenario)


def test_smaller_window_of_the_daemon_is_kept(daemon: ScriptedDaemon) -> None:
    """A daemon that grants less than the usual window is asked for no more."""
    daemon.window = 5

    async def scenario(client: AsyncClient) -> None:
        assert len((await client.generate("m", "50").wait()).tokens) == 100

    run(daemon.endpoints.runtime_dir, scenario)
    assert [header.credit for header in daemon.expect(Generate)] == [5]
    assert {header.chunks for header in daemon.expect(AddCredit)} == {3}


def test_arguments_arrive_as_meant(daemon: ScriptedDaemon) -> None:
    """What the caller says is what the daemon is asked."""
    asked: list[Accepted | Event] = []

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate(
            "m",
            messages=[{"role": "user", "content": "Hi"}, ChatMessage(role="x", content="y")],
            temperature=1,
            top_k=4,
            stop="END",
            seed=3,
            speculation="strict",
            deadline_s=1.5,
            on_event=asked.append,
        )
        await generation.wait()

    run(daemon.endpoints.runtime_dir, scenario)
    header = daemon.expect(Generate)[0]
    assert (header.model, header.credit, header.deadline_ms) == ("m", 64, 1500)
    body = daemon.bodies[header.id]
    assert body.messages == (
        ChatMessage(role="user", content="Hi"),
        ChatMessage(role="x", content="y"),
    )
    assert body.stop == ("END",)
    assert body.sampling.temperature == 1.0
    assert (body.sampling.top_k, body.sampling.seed, body.speculation) == (4, 3, "strict")
    assert [type(event) for event in asked] == [Accepted]


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        (None, {}, "exactly one of prompt, messages, tokens"),
        ("x", {"tokens": [1]}, "exactly one of prompt, messages, tokens"),
        ("x", {"temperature": -1}, "sampling.temperature"),
        ("x", {"temperature": float("nan")}, "sampling.temperature"),
        ("x", {"top_p": 0}, "sampling.top_p"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": "9"}, "max_tokens"),
        ("x", {"speculation": "maybe"}, "speculation"),
        ("x", {"stop": [""]}, "stop"),
        ("x", {"deadline_s": -1}, "deadline_s"),
        ("x", {"deadline_s": float("nan")}, "deadline_s"),
        ("\ud800", {}, "UTF-8"),
        (3, {}, "prompt"),
        (None, {"tokens": [-1]}, "tokens"),
        (None, {"tokens": [object()]}, "cannot be sent"),
        (None, {"messages": [{"role": "user"}]}, "content"),
        (None, {"messages": [{"role": "user", "content": "x", "nickname": "y"}]}, "nickname"),
        (None, {"messages": [7]}, "object"),
        (None, {"messages": []}, "messages"),
    ],
)
def test_impossible_arguments_are_refused_here(
    daemon: ScriptedDaemon, prompt: Any, options: dict[str, Any], sentence: str
) -> None:
    """A request that cannot be meant is a bad_request that names the argument, and is not sent."""

    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(DflashError, match=sentence) as refused:
            client.generate("m", prompt, **options)
        assert refused.value.code is ErrorCode.bad_request

    run(daemon.endpoints.runtime_dir, scenario)
    assert not [header for header in daemon.received if isinstance(header, Generate)]


def test_unknown_argument_is_a_type_error(daemon: ScriptedDaemon) -> None:
    """A misspelt argument is never ignored."""

    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(TypeError, match="temprature"):
            client.generate("m", "x", temprature=1)  # pyright: ignore[reportCallIssue]

    run(daemon.endpoints.runtime_dir, scenario)


def test_failure_of_the_daemon_is_raised(daemon: ScriptedDaemon) -> None:
    """A Failed becomes a DflashError with its code, again on every later wait."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate("unknown", "x")
        for _ in range(2):
            with pytest.raises(DflashError, match="no such model: unknown") as failed:
                await generation.wait()
            assert failed.value.code is ErrorCode.not_found
        with pytest.raises(DflashError, match="no such model"):
            await anext(aiter(generation))

    run(daemon.endpoints.runtime_dir, scenario)


def test_status_returns_the_snapshot(daemon: ScriptedDaemon) -> None:
    """Status gives the daemon's state, over a control connection opened only now."""

    async def scenario(client: AsyncClient) -> None:
        assert len(daemon.expect(Hello)) == 1
        assert await client.status() == SNAPSHOT
        assert await client.status() == SNAPSHOT
        assert len(daemon.expect(Hello)) == 2

    run(daemon.endpoints.runtime_dir, scenario)


def test_spawn_reports_progress(daemon: ScriptedDaemon) -> None:
    """Spawn returns when the model is ready and hands on every step of its load."""
    steps: list[int] = []

    def on_event(event: Accepted | Event) -> None:
        assert isinstance(event, Event)
        steps.append(event.done)

    async def scenario(client: AsyncClient) -> None:
        await client.spawn("m", on_event)

    run(daemon.endpoints.runtime_dir, scenario)
    assert steps == [0, 1, 2]


def test_control_requests_name_the_model_and_the_hurry(daemon: ScriptedDaemon) -> None:
    """Retire and shutdown carry what was asked."""

    async def scenario(client: AsyncClient) -> None:
        await client.retire("m", now=True)
        await client.shutdown()

    run(daemon.endpoints.runtime_dir, scenario)
    retire, shutdown = daemon.expect(Retire)[0], daemon.expect(Shutdown)[0]
    assert (retire.model, retire.now, shutdown.now) == ("m", True, False)


def test_bad_model_name_is_refused_here(daemon: ScriptedDaemon) -> None:
    """A name no model can have is refused before it travels, on both channels."""

    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(DflashError, match="model"):
            client.generate("no spaces", "x")
        with pytest.raises(DflashError, match="model"):
            await client.spawn("../x")

    run(daemon.endpoints.runtime_dir, scenario)


def test_client_cannot_be_used_closed(daemon: ScriptedDaemon) -> None:
    """Using a client that is not open is a mistake of the program and says so."""

    async def scenario() -> None:
        client = AsyncClient(daemon.endpoints.runtime_dir)
        with pytest.raises(RuntimeError, match="not open"):
            client.generate("m", "x")
        async with client:
            with pytest.raises(RuntimeError, match="already open"):
                await client.open()
        with pytest.raises(RuntimeError, match="not open"):
            await client.status()
        await client.close()
        async with client:
            assert (await client.generate("m", "2").wait()).text == "0 1 "

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
