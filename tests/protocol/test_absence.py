"""What a client says where nobody answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from dflashd.protocol import AsyncClient, DflashError
from dflashd.protocol.absence import broken, nobody
from dflashd.protocol.errors import ErrorCode

from .scripted_daemon import WAIT_S


def test_another_users_directory_is_named_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not enter is told so: not that nothing runs, nor that a file cannot be written."""

    def forbidden(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", forbidden)
    error = nobody("ipc:///run/user/1/dflashd/control.sock")
    assert error.code is ErrorCode.unauthorised
    assert "another user" in error.message


def test_a_daemon_elsewhere_is_not_started_from_here() -> None:
    """Of an address on tcp nobody is told to run `dflashd serve` on this machine."""
    assert "dflashd serve" not in nobody("tcp://10.0.0.1:7383").message


def test_a_socket_of_this_machine_asks_for_no_key() -> None:
    """Who breaks off behind a local socket is no dflashd; keys are for those elsewhere."""
    error = broken("ipc:///run/user/1/dflashd/requests.sock", has_key=False)
    assert error.code is ErrorCode.protocol
    assert "key" not in error.message
    assert "key" in broken("tcp://10.0.0.1:7383", has_key=False).message


def test_who_hangs_up_is_named_in_time(runtime_dir: Path) -> None:
    """A stranger's socket, which closes what comes in, is told from a daemon that is not there."""
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as last:
        listener.bind(path := str(runtime_dir / "requests.sock"))
        listener.listen()

        def hang_up() -> None:
            while not ended.is_set():
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(DflashError, match="breaks the connection off: is it a dflashd"):
            asyncio.run(AsyncClient(runtime_dir, timeout_s=0.5, wait_s=0).open())
        ended.set()
        last.connect(path)
        thread.join(WAIT_S)
