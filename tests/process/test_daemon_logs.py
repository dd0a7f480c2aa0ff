"""Workers' logs: bounded while they are written, shown by the daemon, never in anyone's way."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflashd.protocol import DflashError, ErrorCode
from dflashd.protocol.messages import Accepted, AddCredit, LogPart, Logs

from .daemon_process import DaemonProcess, wait_for
from .test_cli_commands import ctl, start
from .test_daemon_events import ID, Peer

MakeDaemon = Callable[..., DaemonProcess]
MIB = 2**20
FLOOD_BYTES = 128 * MIB


def test_a_log_is_shown_running_and_after_the_end(make_daemon: MakeDaemon) -> None:
    """The last lines of a worker's log come through the daemon, whether or not it runs."""
    text = "".join(f"line {n}\n" for n in range(50)) + "Grüße\n"
    daemon = make_daemon({"a/b": {"log": text}})
    assert ctl(daemon, "logs", "a/b").stdout == ""
    ctl(daemon, "spawn", "a/b")
    assert ctl(daemon, "logs", "a/b").stdout == text
    assert ctl(daemon, "logs", "a/b", "-n", "2").stdout == "line 49\nGrüße\n"
    ctl(daemon, "retire", "a/b")
    assert ctl(daemon, "logs", "a/b", "-n", "1").stdout == "Grüße\n"
    missing = ctl(daemon, "logs", "c")
    assert missing.returncode == 4
    assert "no model c" in missing.stderr


def test_a_follower_sees_the_next_incarnation(make_daemon: MakeDaemon) -> None:
    """A followed log goes on when the worker is started again; Ctrl-C ends it."""
    daemon = make_daemon({"a": {"log": "hello\n"}})
    ctl(daemon, "spawn", "a")
    follower = start(daemon, "logs", "a", "-f", "-n", "1")
    assert follower.stdout
    assert follower.stdout.readline() == "hello\n"
    ctl(daemon, "retire", "a")
    ctl(daemon, "spawn", "a")
    assert follower.stdout.readline() == "hello\n"
    follower.send_signal(2)
    follower.communicate(timeout=10)
    assert follower.returncode == 130
    wait_for("the view is ended", lambda: not daemon.status().counters["watchers"])


def test_a_flood_stays_within_its_bound_and_disturbs_nobody(make_daemon: MakeDaemon) -> None:
    """A worker that floods its log goes on working, the log stays bounded, its end is kept."""
    flood = {"log_flood_bytes": FLOOD_BYTES, "chunks": 200, "chunk_s": 0.005}
    daemon = make_daemon({"a": flood, "b": {"chunks": 200}}, log_bytes_per_worker=MIB)
    logs = daemon.state_dir / "logs"
    largest = 0
    with daemon.client() as client:
        running = [client.generate(model, "x") for model in ("a", "b")]
        began_s = time.monotonic()

        def ended() -> bool:
            nonlocal largest
            files = [logs / "a.log.1", logs / "a.log"]  # the last line may just have been put aside
            sizes, ends = zip(*map(size_and_end, files), strict=True)
            largest = max(largest, sum(sizes))
            return b"".join(ends).endswith(b"flood ends\n")

        wait_for("the flood is over", ended, 180)
        took_s = time.monotonic() - began_s
        for generation in running:
            assert generation.wait().stats.generated_tokens == 200
        lag = next(
            f for f in client.metrics().families if f.name == "dflashd_loop_lag_seconds"
        ).samples[0]
        wait_for(
            "the log is within its bound",
            lambda: sum(f.stat().st_size for f in logs.glob("a.log*")) <= MIB,
        )
        lost = client.status().counters["worker_log_bytes_lost"]
        pieces = list(client.logs("a", lines=10_000))
    text = "".join(piece.text for piece in pieces)
    numbers = [int(n) for n in re.findall(r"^flood (\d+)", text, re.MULTILINE)]
    assert text.endswith("flood ends\n")
    assert len(numbers) > 1000
    gaps = sum(b - a - 1 for a, b in itertools.pairwise(numbers))
    assert all(b > a for a, b in itertools.pairwise(numbers))
    assert largest < FLOOD_BYTES / 3, f"{largest} bytes, {took_s:.1f} s"
    assert gaps < len(numbers), f"{gaps} lines lost, {len(numbers)} kept"
    assert lost < MIB
    assert sum(lag.counts[-6:]) == 0, lag


def size_and_end(file: Path) -> tuple[int, bytes]:
    """How long a file is, and its last bytes; it may be put aside at any moment."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - 20))
            return size, opened.read()
    except FileNotFoundError:
        return 0, b""


def test_a_view_without_credit_holds_up_nobody(make_daemon: MakeDaemon) -> None:
    """A viewer that stopped reading costs the model and the daemon nothing, and may go on."""
    daemon = make_daemon({"a": {"log": "x" * 100_000, "chunks": 50}})
    peer = Peer(daemon.runtime_dir)
    with daemon.client() as client:
        client.spawn("a")
        peer.send(Logs(id=ID, model="a", credit=1))
        assert isinstance(peer.receive().header, Accepted)
        assert isinstance(peer.receive().header, LogPart)
        assert client.generate("a", "x").wait().stats.generated_tokens == 50
        busy_s = client.status().counters["busy_cpu_s"]
        wait_for("signs of life only", lambda: isinstance(peer.receive().header, Accepted))
        assert client.status().counters["busy_cpu_s"] - busy_s < 0.5
        peer.send(AddCredit(id=ID, chunks=64))
        assert isinstance(peer.until(LogPart).header, LogPart)
    peer.close()


def test_an_unknown_model_has_no_log(make_daemon: MakeDaemon) -> None:
    """A log of a model nobody configured is not found, with the nearest name."""
    daemon = make_daemon({"alpha": {}})
    with daemon.client() as client, pytest.raises(DflashError) as caught:
        list(client.logs("alpa"))
    assert caught.value.code is ErrorCode.not_found
    assert "did you mean alpha" in caught.value.message


def test_a_log_directory_that_is_gone_keeps_no_worker_down(make_daemon: MakeDaemon) -> None:
    """When no log can be written the worker serves all the same, and an event says why."""
    daemon = make_daemon({"a": {}})
    (daemon.state_dir / "logs").rmdir()
    with daemon.client() as client:
        assert client.generate("a", "x").wait().text
        failed = wait_for(
            "the event", lambda: [e for e in client.events() if e.name == "log_failed"]
        )
        assert "No such file" in str(failed[0].fields["reason"])


WRITER = """
import resource, sys
from dflashd.worker.log import configure, line, log
from dflashd.worker.process.process import leave
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
configure("a", 1)
for n in range(1000):
    log.info(line("told", n=n))
print("still here", file=sys.__stdout__, flush=True)
leave(0)
"""


def test_a_worker_goes_on_when_its_log_takes_no_more(tmp_path: Path) -> None:
    """A worker whose log cannot grow, as on a full disk, works on and leaves as it was told."""
    with (tmp_path / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-c", WRITER],
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=30,
            check=False,
        )
    assert done.stdout == b"still here\n"
    assert done.returncode == 0
    assert (tmp_path / "log").stat().st_size == 4096
