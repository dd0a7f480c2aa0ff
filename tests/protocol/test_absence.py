"""What a client says where nobody answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashd.protocol.absence import broken, nobody
from dflashd.protocol.errors import ErrorCode


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
