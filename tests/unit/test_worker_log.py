"""A worker's log: one run of bytes over two files, cut while it is written and read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dflashd.protocol.messages import LogBody, LogPart
from dflashd.supervisor.logs import worker_log
from dflashd.supervisor.logs.worker_log import WorkerLog
from dflashd.supervisor.logs.worker_logs import WorkerLogs
from dflashd.supervisor.watching.feed import PART_BYTES, LogFeed


def written(log: WorkerLog, data: bytes) -> None:
    with log.path.open("ab") as file:
        file.write(data)


def whole(feed: LogFeed) -> tuple[bytes, int]:
    """All a feed has at the moment, and how much it says is missing."""
    data, missed = b"", 0
    while not feed.is_at_end:
        message = feed.next(bytes(16))
        if message is not None:
            header, body = message
            assert isinstance(header, LogPart)
            assert isinstance(body, LogBody)
            missed += header.missed
            data += body.data
    return data, missed


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("lines", [0, 1, 3, 700, 9999])
def test_the_last_lines_are_found_across_both_files(
    tmp_path: Path, lines: int, ending: str
) -> None:
    """A view begins with exactly the line asked for, wherever the log was cut."""
    log = WorkerLog(tmp_path / "a.log")
    texts = [f"line {n} {'x' * (n % 90)}\n" for n in range(2000)]
    texts[-1] = "the last" + ending
    written(log, "".join(texts[:1500]).encode())
    log.cut(10**6)
    written(log, "".join(texts[1500:]).encode())
    assert log.older.stat().st_size > 0
    expected = "".join(texts[max(0, 2000 - lines) :]) if lines else ""
    assert whole(LogFeed(log, lines, follow=False)) == (expected.encode(), 0)


def test_lines_are_looked_for_in_what_is_left_of_a_log(tmp_path: Path) -> None:
    """A flood may cut off what lies before the place where the search is."""
    log = WorkerLog(tmp_path / "a.log")
    written(log, b"word\n" * 20_000)
    feed = LogFeed(log, 9999, follow=True)
    assert feed.next(bytes(16)) is None
    log.cut(1000)
    assert whole(feed) == (b"word\n" * 200, PART_BYTES - 1000)


def test_last_lines_are_counted_from_behind_what_was_lost(tmp_path: Path) -> None:
    """Bytes that were cut off without a copy are no lines, and the newest are not read twice."""
    log = WorkerLog(tmp_path / "a.log")
    written(log, b"old\n" * 100)
    log.drop()
    written(log, b"one\ntwo\nthree\n")
    assert whole(LogFeed(log, 2, follow=False)) == (b"two\nthree\n", 0)


def test_a_follower_loses_and_repeats_nothing_over_a_cut(tmp_path: Path) -> None:
    """What a follower has not read yet when the log is cut it still gets, once."""
    log = WorkerLog(tmp_path / "a.log")
    written(log, b"one\n")
    feed = LogFeed(log, 5, follow=True)
    assert whole(feed) == (b"one\n", 0)
    written(log, b"two\n")
    log.cut(100)
    written(log, b"three\n")
    assert whole(feed) == (b"two\nthree\n", 0)


def test_a_follower_is_told_what_it_missed(tmp_path: Path) -> None:
    """When two cuts overtake a follower it goes on with what is kept, and says what is not."""
    log = WorkerLog(tmp_path / "a.log")
    feed = LogFeed(log, 0, follow=True)
    written(log, b"0123456789")
    log.cut(4)
    assert whole(feed) == (b"6789", 6)
    written(log, b"abcde")
    log.cut(100)
    written(log, b"fghij")
    log.cut(3)
    assert whole(feed) == (b"hij", 7)


def test_what_a_flood_put_aside_is_shortened(tmp_path: Path) -> None:
    """The older file is bounded too, and positions still mean the same bytes."""
    logs = WorkerLogs(tmp_path, worker_bytes=1000, all_bytes=10_000)
    descriptor = logs.open("a")
    log = logs.of("a")
    os.write(descriptor, b"x" * 900 + b"abc")
    log.cut(903)
    os.write(descriptor, b"def")
    feed = LogFeed(log, 0, follow=True)
    position = log.end
    logs.keep()
    assert log.older.stat().st_size == 500
    assert (log.end, log.begin) == (position, position - 503)
    assert log.read(position - 6, 99) == (position - 6, b"abcdef")
    assert whole(feed) == (b"", 0)
    os.close(descriptor)


def test_the_tail_is_the_last_process_own(tmp_path: Path) -> None:
    """A crash shows its own lines only, also when they were cut off in between."""
    log = WorkerLog(tmp_path / "a.log")
    written(log, b"of an earlier one\n")
    os.close(log.open())
    assert log.tail() == ""
    written(log, b"mine\n")
    log.cut(1000)
    assert log.tail() == "mine"
    written(log, b"last \x1b[31m\n")
    assert log.tail() == "mine\nlast ?[31m"


def test_a_full_disk_empties_the_log_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the copy the log is emptied all the same; the trouble is told until over."""
    logs = WorkerLogs(tmp_path, worker_bytes=1000, all_bytes=10_000)
    descriptor = logs.open("a")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(worker_log, "copied", full)
        patched.setattr(Path, "write_bytes", full)
        for _ in range(3):
            os.write(descriptor, b"x" * 800)
            logs.keep()
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 0
        assert logs.new_errors() == ["[Errno 28] No space left on device"]
        assert logs.new_errors() == []
    assert logs.lost_bytes == 2400
    logs.keep()
    os.write(descriptor, b"y" * 800)
    logs.keep()
    assert (tmp_path / "a.log.1").read_bytes() == b"y" * 500
    os.close(descriptor)


def test_a_log_that_cannot_be_opened_keeps_no_worker_down(tmp_path: Path) -> None:
    """The process then runs without a log, and that is told."""
    logs = WorkerLogs(tmp_path / "missing", worker_bytes=1000, all_bytes=10_000)
    descriptor = logs.open("a")
    assert os.write(descriptor, b"goes nowhere") == 12
    assert "missing" in logs.new_errors()[0]
    assert logs.of("a").tail() == ""
    os.close(descriptor)


def test_log_of_a_process_that_cannot_be_started_is_not_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor there is no process, and its log may go when room is needed."""
    logs = WorkerLogs(tmp_path, worker_bytes=10**6, all_bytes=10**6)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(OSError, match="Too many"):
            logs.open("a")
    assert logs._live == {}


def test_a_follower_of_a_removed_log_sees_the_next_from_its_beginning(tmp_path: Path) -> None:
    """When a stopped worker's log goes to make room, its next one is followed from byte one."""
    logs = WorkerLogs(tmp_path, worker_bytes=1000, all_bytes=1000)
    os.close(logs.open("a"))
    written(logs.of("a"), b"x" * 900)
    feed = LogFeed(logs.of("a"), 0, follow=True)
    logs.ended("a")
    descriptor = logs.open("b")
    logs.keep()
    assert not (tmp_path / "a.log").exists()
    os.close(logs.open("a"))
    written(logs.of("a"), b"anew\n")
    assert whole(feed) == (b"anew\n", 0)
    os.close(descriptor)


def test_all_logs_together_are_bounded(tmp_path: Path) -> None:
    """Logs of workers that do not run go first, the longest unwritten ones before others."""
    logs = WorkerLogs(tmp_path, worker_bytes=1000, all_bytes=3000)
    for n, name in enumerate(("old.log", "newer.log", "newest.log.1")):
        (tmp_path / name).write_bytes(b"x" * 900)
        os.utime(tmp_path / name, (n, n))
    descriptors = [logs.open(worker) for worker in ("a", "b/c")]
    for descriptor in descriptors:
        os.write(descriptor, b"y" * 400)
    logs.keep()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"newest.log.1", "a.log", "b%2Fc.log"}
    descriptors += [logs.open(worker) for worker in ("d", "e", "f")]
    logs.keep()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a.log", "a.log.1", "b%2Fc.log", "b%2Fc.log.1", "d.log", "e.log", "f.log"}
    assert (tmp_path / "a.log").stat().st_size == 0
    assert (tmp_path / "a.log.1").stat().st_size == 300
    for descriptor in descriptors:
        os.close(descriptor)
