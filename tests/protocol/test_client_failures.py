"""What the client does when the daemon misbehaves, dies, restarts or is not there."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dflashd.protocol import AsyncClient, Client, DflashError, ErrorCode, absence
from dflashd.protocol.errors import Malformed
from dflashd.protocol.messages import Cancel, Generate, Hello, Shutdown, Spawn
from dflashd.protocol.paths import Endpoints

from .scripted_daemon import WAIT_S, ScriptedDaemon
from .test_async_client import run


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("gap", "chunk 3 arrived where 2 was due"),
        ("credit-breaker", "without credit"),
        ("wrong-kind", "'snapshot' where it has no meaning"),
        ("bad-body", "field 'tokens'"),
        ("foreign", "is not a dflashd"),
    ],
)
def test_broken_protocol_ends_the_request(
    daemon: ScriptedDaemon, model: str, sentence: str
) -> None:
    """A daemon that breaks the protocol costs one typed error, and the request is cancelled."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate(model, "200")
        await asyncio.to_thread(daemon.expect, Cancel)
        with pytest.raises(DflashError, match=sentence) as failed:
            await generation.wait()
        assert failed.value.code in {ErrorCode.protocol, ErrorCode.bad_request}
        assert (await client.generate("m", "2").wait()).text == "0 1 "

    run(daemon.endpoints.runtime_dir, scenario)


def test_death_of_the_daemon_fails_what_waits_at_once(runtime_dir: Path) -> None:
    """When the connection goes, every pending request fails at once, and may be tried again."""

    async def scenario() -> None:
        with ScriptedDaemon(runtime_dir) as daemon:
            client = AsyncClient(runtime_dir)
            await client.open()
            waits = [
                asyncio.create_task(client.generate("silent", "x").wait()),
                asyncio.create_task(client.generate("m", "forever").wait()),
                asyncio.create_task(client.spawn("slow")),
            ]
            await asyncio.to_thread(daemon.expect, Generate, 2)
            await asyncio.to_thread(daemon.expect, Spawn)
        started = time.monotonic()
        for wait in waits:
            with pytest.raises(DflashError) as failed:
                await wait
            assert failed.value.code is ErrorCode.worker_lost
            assert failed.value.retryable
        assert time.monotonic() - started < 1
        await client.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_client_outlives_a_restart(runtime_dir: Path) -> None:
    """After a restart the same client works again, and nothing old is replayed."""

    async def scenario() -> None:
        with ScriptedDaemon(runtime_dir) as first:
            client = AsyncClient(runtime_dir)
            await client.open()
            lost = client.generate("silent", "x")
            await asyncio.to_thread(first.expect, Generate)
        with pytest.raises(DflashError):
            await lost.wait()
        waiting = client.generate("m", "2")
        with ScriptedDaemon(runtime_dir) as second:
            assert (await waiting.wait()).text == "0 1 "
            assert (await client.status()).state == "serving"
            assert len(second.expect(Generate)) == 1
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_request_to_a_daemon_that_went_and_stays_away_fails_in_time(runtime_dir: Path) -> None:
    """Without a daemon a new request fails within the timeout and says how to start one."""

    async def scenario() -> None:
        with ScriptedDaemon(runtime_dir):
            client = AsyncClient(runtime_dir, timeout_s=0.3)
            await client.open()
        lost = client.generate("m", "2")
        with pytest.raises(DflashError) as failed:
            await lost.wait()
        assert failed.value.code in {ErrorCode.worker_lost, ErrorCode.not_found}
        with pytest.raises(DflashError, match="dflashd serve") as failed:
            await client.generate("m", "2").wait()
        assert failed.value.code is ErrorCode.not_found
        await client.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


@pytest.mark.parametrize("wait_s", [0.0, 0.3, None])
def test_no_daemon_is_a_clear_error(runtime_dir: Path, wait_s: float | None) -> None:
    """Connecting to nobody names the socket and the command, no later than promised."""

    async def scenario() -> None:
        started = time.monotonic()
        with pytest.raises(DflashError, match=r"requests\.sock.*dflashd serve") as failed:
            await AsyncClient(runtime_dir, timeout_s=0.6, wait_s=wait_s).open()
        assert failed.value.code is ErrorCode.not_found
        assert failed.value.retryable
        waited = time.monotonic() - started
        assert (0.6 if wait_s is None else wait_s) <= waited < 2

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_connecting_waits_for_a_daemon_that_is_starting(runtime_dir: Path) -> None:
    """A client may be started before its daemon."""

    async def scenario() -> None:
        client = AsyncClient(runtime_dir)
        opening = asyncio.create_task(client.open())
        await asyncio.sleep(0)
        with ScriptedDaemon(runtime_dir):
            await opening
            assert (await client.generate("m", "2").wait()).text == "0 1 "
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_daemon_that_never_welcomes_is_a_clear_error(daemon: ScriptedDaemon) -> None:
    """Something that listens and says nothing does not hold the client."""
    daemon.mute = True

    async def scenario() -> None:
        with pytest.raises(DflashError, match="does not answer") as failed:
            await AsyncClient(daemon.endpoints.runtime_dir, timeout_s=0.3).open()
        assert failed.value.code is ErrorCode.worker_lost

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


@pytest.mark.parametrize("wait_s", [0, None])
def test_process_that_is_stopped_listens_all_the_same(
    runtime_dir: Path, wait_s: float | None
) -> None:
    """A daemon that hangs before it greets is not called absent: to start one would not help."""

    async def scenario() -> None:
        client = AsyncClient(runtime_dir, timeout_s=0.3, wait_s=wait_s)
        with pytest.raises(DflashError, match="does not answer") as failed:
            await client.open()
        assert failed.value.code is ErrorCode.worker_lost

    with socket.socket(socket.AF_UNIX) as listener:  # the kernel accepts, as for SIGSTOP
        listener.bind(str(Endpoints(runtime_dir).requests).removeprefix("ipc://"))
        listener.listen()
        asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_request_that_is_not_accepted_fails_in_time(daemon: ScriptedDaemon) -> None:
    """A daemon that answers others but not this request costs it its timeout, not for ever."""

    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(DflashError, match="does not answer"):
            await client.generate("ignored", "x").wait()

    run(daemon.endpoints.runtime_dir, scenario, timeout_s=0.3)
    daemon.expect(Cancel)


def test_daemon_that_falls_silent_fails_what_waits(daemon: ScriptedDaemon) -> None:
    """An accepted request does not wait for ever for a daemon that hangs."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate("silent", "x")
        control = asyncio.create_task(client.spawn("slow"))
        await asyncio.to_thread(daemon.expect, Generate)
        await asyncio.to_thread(daemon.expect, Spawn)
        daemon.mute = True
        with pytest.raises(DflashError, match="does not answer") as failed:
            await generation.wait()
        assert failed.value.code is ErrorCode.worker_lost
        with pytest.raises(DflashError, match="does not answer"):
            await control

    run(daemon.endpoints.runtime_dir, scenario, silence_s=0.2)


def test_long_silence_of_a_request_is_no_silence_of_the_daemon(daemon: ScriptedDaemon) -> None:
    """A request may wait far beyond the silence limit while the daemon answers questions."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate("silent", "x")
        await asyncio.to_thread(daemon.expect, Hello, 12)
        assert not generation.ended

    run(daemon.endpoints.runtime_dir, scenario, silence_s=0.2)


def test_blocked_client_does_not_blame_the_daemon(daemon: ScriptedDaemon) -> None:
    """A loop that was blocked for longer than the silence limit loses nothing."""

    async def scenario(client: AsyncClient) -> None:
        generation = client.generate("m", "40")
        await asyncio.to_thread(daemon.expect, Generate)
        time.sleep(0.5)  # noqa: ASYNC251 - blocking the loop is what is tested
        assert len((await generation.wait()).tokens) == 80

    run(daemon.endpoints.runtime_dir, scenario, silence_s=0.2)


def test_deadline_is_kept_without_the_daemon(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline ends the request even if the daemon forgets it, and the daemon is told."""
    monkeypatch.setattr("dflashd.protocol.client.DEADLINE_GRACE_S", 0.05)

    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(DflashError) as failed:
            await client.generate("silent", "x", deadline_s=0.1).wait()
        assert failed.value.code is ErrorCode.deadline

    run(daemon.endpoints.runtime_dir, scenario)
    daemon.expect(Cancel)


@pytest.mark.parametrize("repeat", range(20))
def test_last_words_of_a_daemon_are_heard(runtime_dir: Path, repeat: int) -> None:
    """What the daemon sent just before it closed is delivered before the disconnect is."""

    async def scenario() -> None:
        with ScriptedDaemon(runtime_dir) as daemon:
            async with AsyncClient(runtime_dir) as client:
                await client.status()
                await client.shutdown(now=True)
            assert daemon.expect(Shutdown)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_callback_that_raises_ends_its_request_only(daemon: ScriptedDaemon) -> None:
    """An exception of on_event comes out where the request is awaited; others go on."""

    def on_event(event: object) -> None:
        raise ZeroDivisionError("of the user")

    async def scenario(client: AsyncClient) -> None:
        other = client.generate("m", "100")
        with pytest.raises(ZeroDivisionError, match="of the user"):
            await client.generate("m", "forever", on_event=on_event).wait()
        assert len((await other.wait()).tokens) == 200

    run(daemon.endpoints.runtime_dir, scenario)
    daemon.expect(Cancel)


def test_silent_daemon_has_not_stopped(daemon: ScriptedDaemon) -> None:
    """A shutdown that nobody answers is a failure, though the connection's end would not be."""

    async def scenario(client: AsyncClient) -> None:
        _ = await client.status()
        daemon.mute = True
        with pytest.raises(DflashError, match="does not answer") as failed:
            await client.shutdown()
        assert failed.value.code is ErrorCode.worker_lost

    run(daemon.endpoints.runtime_dir, scenario, silence_s=0.2)


def test_address_that_cannot_be_leaves_the_loop_as_it_was(daemon: ScriptedDaemon) -> None:
    """A client that libzmq refuses to connect does not disturb the next one of the same loop."""

    async def scenario() -> None:
        for _ in range(3):
            with pytest.raises(DflashError, match="no socket can be opened"):
                await AsyncClient(connect="tcp://*:9").open()
            async with AsyncClient(daemon.endpoints.runtime_dir) as client:
                assert (await client.generate("m", "2").wait()).text == "0 1 "

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


@pytest.mark.parametrize("name", ["timeout_s", "wait_s", "silence_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "3"])
def test_times_without_a_meaning_are_refused(name: str, value: Any) -> None:
    """A client whose waits would not end, or at once, is refused by the argument's name."""
    for make in (AsyncClient, Client):
        with pytest.raises(DflashError, match=name) as refused:
            make(**{name: value})
        assert refused.value.code is ErrorCode.bad_request


def test_callback_must_be_one(daemon: ScriptedDaemon) -> None:
    """What cannot be called is refused before anything is asked."""

    async def scenario(client: AsyncClient) -> None:
        bad: Any = 7
        with pytest.raises(DflashError, match="on_event"):
            client.generate("m", "x", on_event=bad)
        with pytest.raises(DflashError, match="on_event"):
            await client.spawn("m", bad)

    run(daemon.endpoints.runtime_dir, scenario)


@pytest.mark.parametrize(
    "error",
    [
        DflashError(ErrorCode.overloaded, "later", retryable=True, retry_after_s=2.0),
        Malformed(ErrorCode.protocol, "odd", bytes(16)),
        absence.lost("ipc:///x"),
    ],
)
def test_errors_cross_between_processes(error: DflashError) -> None:
    """An error that a pool of processes hands back is the same error."""
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_closing_ends_a_connection_that_is_being_made(daemon: ScriptedDaemon) -> None:
    """Who closes a client does not leave its other tasks waiting, nor the loop unclean."""

    async def scenario() -> None:
        for _ in range(3):
            client = AsyncClient(daemon.endpoints.runtime_dir)
            await client.open()
            daemon.mute = True
            waiting = [asyncio.create_task(client.status()) for _ in range(2)]
            await asyncio.sleep(0)
            await client.close()
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, DflashError)
                assert error.code is ErrorCode.cancelled
            daemon.mute = False
            async with client:
                assert (await client.status()).state == "serving"

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_a_key_without_an_address_is_refused(tmp_path: Path) -> None:
    """A key that would not be used is not passed over in silence."""
    for make in (AsyncClient, Client):
        with pytest.raises(DflashError, match="address") as refused:
            make(key=tmp_path / "any.key")
        assert refused.value.code is ErrorCode.bad_request
