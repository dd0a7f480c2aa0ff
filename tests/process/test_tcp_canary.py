"""The canary: a lock that lets nobody in, or everybody, is noticed and the listener closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from dflashd.protocol.key_file import KeyFile, new_pair
from dflashd.supervisor.config.tcp_section import TcpSection
from dflashd.supervisor.doors.door import Door
from dflashd.supervisor.keys.client_keys import allow
from dflashd.supervisor.keys.server_key import server_key
from dflashd.supervisor.tcp import canary as canary_module, zap
from dflashd.supervisor.tcp.canary import gets_in
from dflashd.supervisor.tcp.door import TcpDoor
from dflashd.supervisor.tcp.listener import TcpListener

from .gateway_process import free_port


class Watched:
    """A switchboard that only remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Mapping[str, str | float]]] = []
        self.doors: list[TcpDoor] = []

    def open_door(self, door: TcpDoor) -> None:
        self.doors.append(door)

    def close_door(self, door: TcpDoor) -> None:
        self.doors.remove(door)

    def wake(self, door: Door) -> None:
        pass

    def lose(self, identities: list[bytes]) -> None:
        pass

    def note(self, name: str, fields: Mapping[str, str | float]) -> None:
        self.told.append((name, fields))


@asynccontextmanager
async def listening(folder: Path) -> AsyncGenerator[tuple[TcpListener, Watched, str, KeyFile]]:
    """A listener with its canary, one allowed key, and nothing else."""
    address = f"tcp://127.0.0.1:{free_port()}"
    public, secret = new_pair()
    allow(folder, "app", public, "request")
    key = KeyFile(name="app", server=server_key(folder).public, public=public, secret=secret)
    board = Watched()
    section = TcpSection(listen=(address,), canary_interval_s=0.05)
    listener = TcpListener(section, folder, board)
    listener.start()
    guard = asyncio.create_task(listener.guard())
    try:
        yield listener, board, address, key
    finally:
        guard.cancel()
        listener.stop()


async def closed(listener: TcpListener) -> str:
    """The reason for which it has closed, within a deadline."""
    async with asyncio.timeout(20):
        while listener.status().state == "listening":  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
    return listener.status().reason


def test_a_sound_lock_stays_open(short_dir: Path) -> None:
    """Proof after proof, a listener in order goes on listening, and its keys get in."""

    async def scene() -> None:
        async with listening(short_dir / "keys") as (listener, board, address, key):
            context: zmq.Context[Any] = zmq.Context()
            for _ in range(3):
                assert await gets_in(context, address, key)
            context.destroy(linger=0)
            assert listener.status().state == "listening"
            assert [name for name, _ in board.told] == ["tcp_opened"]

    asyncio.run(scene())


def test_a_lock_that_lets_strangers_in_is_closed(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stranger that gets in is the canary's bad key, and the listener is gone."""
    monkeypatch.setattr(TcpListener, "_admits", lambda self, public: True)

    async def scene() -> None:
        async with listening(short_dir / "keys") as (listener, board, address, key):
            assert "not allowed got in" in await closed(listener)
            assert listener.status().state == "fatal"
            assert board.doors == []
            assert board.told[-1][0] == "tcp_closed"
            context: zmq.Context[Any] = zmq.Context()
            monkeypatch.setattr(canary_module, "HANDSHAKE_S", 0.3)
            assert not await gets_in(context, address, key)
            context.destroy(linger=0)

    asyncio.run(scene())


def test_a_lock_that_answers_nobody_is_closed(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes that hang, with nothing else to show it, close the listener within two proofs."""
    monkeypatch.setattr(canary_module, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(zap.ZapResponder, "_answer", lambda self, frames: None)

    async def scene() -> None:
        async with listening(short_dir / "keys") as (listener, *_):
            assert "does not get in" in await closed(listener)

    asyncio.run(scene())


def test_a_mistake_in_an_answer_refuses_and_goes_on(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception while a key is judged lets nobody in, and the next question is answered."""
    real = TcpListener._admits
    asked: list[str] = []

    def once(self: TcpListener, public: str) -> bool:
        asked.append(public)
        if len(asked) == 1:
            raise RuntimeError("a mistake")
        return real(self, public)

    monkeypatch.setattr(TcpListener, "_admits", once)

    async def scene() -> None:
        async with listening(short_dir / "keys") as (listener, _, address, key):
            context: zmq.Context[Any] = zmq.Context()
            async with asyncio.timeout(20):
                while not await gets_in(context, address, key):
                    pass
            context.destroy(linger=0)
            assert listener.status().state == "listening"

    asyncio.run(scene())
