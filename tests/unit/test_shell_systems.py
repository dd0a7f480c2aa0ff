"""What differs between systems, or goes wrong on some: locks, exits, descriptors, stdin."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflashd.supervisor import open_files
from dflashd.supervisor.errors import DaemonError, UnsafeDirectory
from dflashd.supervisor.instance_lock import InstanceLock
from dflashd.supervisor.processes import exit_watch, lifeline
from dflashd.supervisor.processes.lifeline import Lifeline
from dflashd.supervisor.tcp.connection import shut


def test_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may know no locks: that is a sentence, and no descriptor is left."""

    def refuses(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(UnsafeDirectory, match="cannot be locked"), InstanceLock(tmp_path, "i"):
        pass
    assert len(os.listdir("/dev/fd")) == before


def test_mac_process_that_ended_before_it_was_watched_counts_as_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kqueue knows no process that has ended: its exit status is still there to be collected."""

    class Queue:
        def __init__(self) -> None:
            self._pipe = os.pipe()

        def fileno(self) -> int:
            return self._pipe[0]

        def control(self, _wanted: object, _count: int) -> None:
            raise ProcessLookupError

    names = ("KQ_FILTER_PROC", "KQ_EV_ADD", "KQ_EV_ONESHOT", "KQ_NOTE_EXIT")
    kqueue: Any = SimpleNamespace(
        kqueue=Queue, kevent=lambda *_a, **_k: None, **dict.fromkeys(names, 0)
    )
    monkeypatch.setattr(exit_watch, "select", kqueue)
    monkeypatch.setattr(exit_watch.sys, "platform", "darwin")
    descriptor = exit_watch.exit_descriptor(1)
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    assert ended.poll(0)
    os.close(descriptor)


def test_descriptor_that_is_a_local_connection_by_now_is_left_alone() -> None:
    """libzmq gives numbers of closed tcp connections to others: a worker must not pay for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        shut(ours.fileno())
        _ = theirs.send(b"x")
        assert ours.recv(1) == b"x"


def test_file_as_stdin_is_no_lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS watches files too, and a file's end would be taken for the parent's."""
    with (tmp_path / "input").open("wb") as file:
        monkeypatch.setattr(lifeline, "_STDIN", file.fileno())
        with pytest.raises(DaemonError, match="a pipe or a socket"):
            Lifeline(lambda: None).hold()


def test_limit_of_open_files_is_raised_as_far_as_the_kernel_lets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS names no hard limit and refuses too much: 256 would not do for a day."""
    raised: list[int] = []

    def refuses(_what: int, limits: tuple[int, int]) -> None:
        if limits[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        raised.append(limits[0])

    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (256, infinity))
    monkeypatch.setattr(resource, "setrlimit", refuses)
    open_files.raise_limit()
    assert raised == [10_240]
