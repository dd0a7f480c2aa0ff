"""Files of keys: changed by one process at a time, and what cannot be read is said."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

import pytest

from dflashd.supervisor.errors import UnsafeFile
from dflashd.supervisor.keys import private_file
from dflashd.supervisor.keys.http_keys import new_http_key
from dflashd.supervisor.keys.private_file import LOCK_NAME, read_private, write_value


def test_change_that_somebody_holds_up_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended `dflashctl keys` keeps no other one, nor the daemon, waiting for ever."""
    monkeypatch.setattr(private_file, "LOCK_S", 0.1)
    folder = tmp_path / "keys"
    _ = new_http_key(folder, "first")
    with (folder / LOCK_NAME).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UnsafeFile, match="another process changes keys"):
            _ = new_http_key(folder, "second")
    assert new_http_key(folder, "second").startswith("dfl-")


def test_disk_that_fails_is_a_file_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon looks at keys all the time: an error of the disk must not end it."""
    path = tmp_path / "http.json"
    write_value(path, ())
    open_descriptor = os.fdopen

    class Failing:
        def __init__(self, descriptor: int, mode: str) -> None:
            self._file = open_descriptor(descriptor, mode)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdopen", Failing)
    with pytest.raises(UnsafeFile, match="Input/output error"):
        _ = read_private(path)
