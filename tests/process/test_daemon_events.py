"""Events: what the daemon did, told in order to whoever asks, and never at the requests' cost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.asker import Asker
from dflashd.protocol.codec import Message, decode, decode_body, encode
from dflashd.protocol.envelope import SIGNATURE
from dflashd.protocol.messages import (
    WINDOW_CHUNKS,
    Accepted,
    AddCredit,
    Cancel,
    Done,
    EventBody,
    Failed,
    Happened,
    Header,
    Subscribe,
    ToClient,
)
from dflashd.protocol.paths import Endpoints

from .daemon_process import DaemonProcess, wait_for
from .test_cli_commands import ctl, start

MakeDaemon = Callable[..., DaemonProcess]
ID = bytes(16)


class Peer:
    """A control connection that reads only when it is told to."""

    def __init__(self, runtime_dir: Path) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(Endpoints(runtime_dir).control)

    def send(self, header: Header) -> None:
        self.socket.send_multipart(encode(header))

    def receive(self) -> Message:
        assert self.socket.poll(10_000), "nothing came"
        return decode(self.socket.recv_multipart(), ToClient)

    def until(self, kind: type[Header]) -> Message:
        while not isinstance((message := self.receive()).header, kind):
            pass
        return message

    def close(self) -> None:
        self.context.destroy(0)


def test_what_happened_is_told_in_order(make_daemon: MakeDaemon) -> None:
    """The events of a load and an unload come with gapless serials and the time of day."""
    daemon = make_daemon({"a": {}})
    with daemon.client() as client:
        client.spawn("a")
        client.retire("a")
        events = list(client.events())
        assert [e.serial for e in events] == list(range(1, len(events) + 1))
        assert all(abs(e.at_unix_s - time.time()) < 60 for e in events)
        names = [e.name for e in events]
        assert names.index("model_loaded") < names.index("worker_exited")
        exited = next(e for e in events if e.name == "worker_exited")
        assert exited.fields["worker"] == "a"
        assert exited.fields["status"] == 0
        assert list(client.events(last=2)) == events[-2:]
        assert list(client.events(last=0)) == []


def test_a_follower_hears_of_what_comes_until_the_daemon_stops(make_daemon: MakeDaemon) -> None:
    """With follow nothing old is repeated, nothing new is missed, and the stop is said."""
    daemon = make_daemon({"a": {}})
    with daemon.client() as client, daemon.client() as other:
        other.spawn("a")
        following = client.events(last=1, follow=True)
        first = next(following)
        assert first == next(other.events(last=1))
        other.retire("a")
        heard = [first]
        while heard[-1].name != "worker_stopped":
            heard.append(next(following))
        assert [e.serial for e in heard] == [first.serial + n for n in range(len(heard))]
        other.shutdown()
        with pytest.raises(DflashError) as caught:
            for _ in following:
                pass
        assert caught.value.code is ErrorCode.shutting_down


def test_a_crash_leaves_its_last_lines_in_event_and_status(make_daemon: MakeDaemon) -> None:
    """What a worker wrote last before it died can still be read, without looking for its file."""
    words = "loading\nTraceback\nValueError: bad weights\n"
    daemon = make_daemon({"a": {"exit_at_load": 3, "last_words": words}}, backoff_first_s=60)
    with daemon.client() as client:
        with pytest.raises(DflashError):
            client.spawn("a")
        exited = next(e for e in client.events() if e.name == "worker_exited")
        assert exited.fields["last_lines"] == words.strip()
        assert client.status().workers[0].last_lines == words.strip()
    assert "  | ValueError: bad weights\n" in ctl(daemon, "status").stdout


def test_a_subscriber_without_credit_is_told_of_the_gap(make_daemon: MakeDaemon) -> None:
    """Who does not read holds up nobody; later it learns how many events it has missed."""
    daemon = make_daemon({"a": {}}, events_kept=5)
    peer = Peer(daemon.runtime_dir)
    peer.send(Subscribe(id=ID, last=0, follow=True, credit=1))
    assert isinstance(peer.receive().header, Accepted)
    with daemon.client() as client:
        for _ in range(3):
            client.spawn("a")
            client.retire("a")
        first = peer.until(Happened)
        kept = list(client.events())
        assert len(kept) == 5
        peer.send(AddCredit(id=ID, chunks=64))
        later = [peer.until(Happened) for _ in range(5)]
    bodies = [decode_body(EventBody, message.body) for message in (first, *later)]
    headers = [m.header for m in later if isinstance(m.header, Happened)]
    assert bodies[1:] == kept
    assert headers[0].missed == kept[0].serial - bodies[0].serial - 1 > 0
    assert [h.missed for h in headers[1:]] == [0, 0, 0, 0]
    peer.send(Cancel(id=ID))
    failed = peer.until(Failed).header
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.cancelled
    peer.close()


def test_a_silent_follower_gets_signs_of_life_and_is_forgotten_when_gone(
    make_daemon: MakeDaemon,
) -> None:
    """A follower is told that it is still one; one that vanished frees its place."""
    daemon = make_daemon({}, keepalive_s=0.1, watchers=1)
    peer = Peer(daemon.runtime_dir)
    peer.send(Subscribe(id=ID, last=0, follow=True))
    for _ in range(3):
        assert isinstance(peer.receive().header, Accepted)
    with daemon.client() as client:
        with pytest.raises(DflashError) as caught:
            list(client.events())
        assert caught.value.code is ErrorCode.overloaded
        peer.close()
        wait_for("the place is free", lambda: client.status().counters["watchers"] == 0)
        assert list(client.events()) == []


def test_the_same_id_is_refused_without_ending_the_first(make_daemon: MakeDaemon) -> None:
    """A second watch under an id in use is refused; the first one goes on to its end."""
    daemon = make_daemon({})
    peer = Peer(daemon.runtime_dir)
    peer.send(Subscribe(id=ID, follow=True))
    peer.send(Subscribe(id=ID))
    refused = peer.until(Failed).header
    assert isinstance(refused, Failed)
    assert refused.id is None
    peer.send(Subscribe(id=bytes(15) + b"1"))
    assert peer.until(Done).header == Done(id=bytes(15) + b"1")
    peer.close()


def test_events_on_the_command_line(make_daemon: MakeDaemon) -> None:
    """dflashctl events prints a line an event; with -f it goes on until the daemon stops."""
    daemon = make_daemon({"a": {}})
    ctl(daemon, "spawn", "a")
    lines = ctl(daemon, "events").stdout.splitlines()
    assert any("model_loaded worker=a" in line for line in lines)
    printed = ctl(daemon, "events", "--json", "-n", "2").stdout
    objects = [json.loads(line) for line in printed.splitlines()]
    assert [o["serial"] for o in objects] == [len(lines) - 1, len(lines)]
    follower = start(daemon, "events", "-f", "-n", "0")
    assert follower.stdout
    wait_for("it follows", lambda: daemon.status().counters["watchers"])
    ctl(daemon, "retire", "a")
    while "worker_stopped" not in follower.stdout.readline():
        pass
    ctl(daemon, "shutdown")
    _, errors = follower.communicate(timeout=10)
    assert follower.returncode == 1, errors
    assert "stopping" in errors


def test_a_stderr_that_nobody_reads_stops_nothing(make_daemon: MakeDaemon) -> None:
    """With its own log's pipe full the daemon goes on, counts what it dropped, and ends in time."""
    daemon = make_daemon({"a": {}})
    daemon.signal(signal.SIGTERM)
    daemon.wait()
    source, target = os.pipe()
    with os.fdopen(target, "wb") as log:
        daemon.start(log)
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(Endpoints(daemon.runtime_dir).workers)
    with daemon.client() as client:
        for _ in range(9000):
            stranger.send_multipart([SIGNATURE, b"no header", b""])
            assert stranger.poll(10_000)
            stranger.recv_multipart()
        assert client.generate("a", "x").wait().stats.generated_tokens == 5
        assert client.status().counters["log_lines_dropped"] > 0
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    os.close(source)
    context.destroy(0)


def test_an_asker_hears_all_that_is_kept(make_daemon: MakeDaemon) -> None:
    """Without an event loop more than a window of events is read, and leaving early ends it."""
    daemon = make_daemon({"a": {}})
    with Asker(daemon.runtime_dir) as asker:
        for turn in range(100):
            asker.pin("a", pinned=turn % 2 == 0)
        heard = [event.serial for event in asker.events()]
        assert len(heard) > WINDOW_CHUNKS
        with daemon.client() as client:
            assert heard == [event.serial for event in client.events()]
            assert asker.metrics().families
            assert next(asker.events(last=100)).serial == heard[-100]
            asker.close()
            wait_for("nobody watches", lambda: not watching(client))


def watching(client: Client) -> int:
    """How many watch, or are owed something."""
    return int(client.status().counters["watchers"])
