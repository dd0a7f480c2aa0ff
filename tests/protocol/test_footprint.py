"""What the protocol package costs those who use it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflashd.protocol import AsyncClient, __all__ as exported

from .scripted_daemon import WAIT_S, ScriptedDaemon

HEAVY = ("asyncio", "zmq", "msgspec", "msgpack", "numpy", "mlx", "transformers")


def loaded_after(statement: str) -> list[str]:
    """Return which heavy packages a fresh interpreter has loaded after ``statement``."""
    program = f"import sys; {statement}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode().split()


def test_importing_the_package_costs_nothing() -> None:
    """Importing dflashd.protocol, or its errors, loads no library at all."""
    assert loaded_after("import dflashd.protocol") == []
    assert loaded_after("from dflashd.protocol import DflashError, ErrorCode") == []


def test_pure_parts_stay_pure() -> None:
    """Messages, codec, credit and paths know neither sockets nor an event loop."""
    modules = "codec, credit, envelope, errors, messages, paths"
    assert loaded_after(f"from dflashd.protocol import {modules}") == ["msgspec", "msgpack"]


def test_client_loads_no_model_library() -> None:
    """A client never pulls in what only a worker needs."""
    assert set(loaded_after("from dflashd.protocol import Client")) == set(HEAVY[:4])


@pytest.mark.parametrize("name", exported)
def test_every_export_exists(name: str) -> None:
    """Every name the package promises can be imported from it."""
    import dflashd.protocol

    assert getattr(dflashd.protocol, name).__name__ == name
    assert name in dir(dflashd.protocol)


def test_unknown_export_is_an_attribute_error() -> None:
    """A name the package does not have is missing in the usual way."""
    import dflashd.protocol

    with pytest.raises(AttributeError, match="Nothing"):
        _ = dflashd.protocol.Nothing  # pyright: ignore[reportUnknownVariableType, reportAttributeAccessIssue]


def test_clients_leave_nothing_behind(daemon: ScriptedDaemon) -> None:
    """After a hundred clients there are no more threads and file descriptors than after one."""

    async def use() -> None:
        async with AsyncClient(daemon.endpoints.runtime_dir) as client:
            await client.generate("m", "2").wait()
            await client.status()

    def open_files() -> int:
        folder = Path("/dev/fd" if sys.platform == "darwin" else "/proc/self/fd")
        return len(os.listdir(folder))

    async def many() -> None:
        await use()
        before = (open_files(), threading.active_count())
        for _ in range(100):
            await use()
        # The daemon's side closes its ends in its own time.
        async with asyncio.timeout(WAIT_S):
            while (open_files(), threading.active_count()) > before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(many())
