"""Watchers get what they have credit for, in turns, and end once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    Body,
    Done,
    EventBody,
    Failed,
    Happened,
    Header,
)
from dflashd.supervisor.core.events import Peer
from dflashd.supervisor.watching.feed import EventFeed, Feed
from dflashd.supervisor.watching.journal import Journal
from dflashd.supervisor.watching.watchers import Watchers

PEER = Peer("control", b"peer")
ID = bytes(16)


class Broken(Feed):
    """A file that cannot be read."""

    @property
    def is_at_end(self) -> bool:
        return False

    def next(self, id: bytes) -> tuple[Header, Body] | None:
        raise OSError("input/output error")


class Bench:
    """Watchers, and what they sent."""

    def __init__(self, events: int = 0) -> None:
        self.sent: list[tuple[Peer, Header, Body | None]] = []
        self.keepalive_s = 1.0
        self.watchers = Watchers(4, lambda: self.keepalive_s, lambda *sent: self.sent.append(sent))
        self.journal = Journal(keep=1000)
        for n in range(events):
            self.journal.add("happened", {"n": n})

    def add(self, peer: Peer = PEER, *, follow: bool = False, credit: int = 64) -> None:
        feed = EventFeed(self.journal, None, follow=follow)
        self.watchers.add(peer, ID, feed, follow=follow, credit=credit, now=0.0)

    def serve(self) -> None:
        while self.watchers.turn(0.0):
            pass

    @property
    def kinds(self) -> list[type[Header]]:
        return [type(header) for _, header, _ in self.sent]


def test_credit_is_kept_to_and_the_end_costs_none() -> None:
    """No message goes beyond the credit; Done follows the last one without any left."""
    bench = Bench(events=5)
    bench.add(credit=3)
    bench.serve()
    assert bench.kinds == [Accepted, *[Happened] * 3]
    bench.watchers.grant(PEER, ID, 2)
    bench.serve()
    assert bench.kinds[4:] == [Happened, Happened, Done]
    assert bench.watchers.count == 0


def test_credit_beyond_the_window_is_cut() -> None:
    """However much a client grants, at most a window is under way."""
    bench = Bench(events=500)
    bench.add()
    for _ in range(5):
        bench.watchers.grant(PEER, ID, 64)
    bench.serve()
    assert bench.kinds.count(Happened) == 64


def test_signs_of_life_come_as_often_as_the_configuration_says_now() -> None:
    """A reload that changes how often changes it for those who watch already."""
    bench = Bench()
    bench.add(follow=True)
    bench.keepalive_s = 9.0
    bench.watchers.turn(8.0)
    assert bench.kinds == [Accepted]
    bench.keepalive_s = 2.0
    bench.watchers.turn(8.0)
    assert bench.kinds == [Accepted, Accepted]


def test_watchers_take_turns() -> None:
    """A long feed does not keep another watcher, or a request, waiting for its end."""
    bench = Bench(events=60)
    bench.add()
    bench.add(Peer("control", b"other"))
    assert bench.watchers.turn(0.0)
    peers = [peer for peer, header, _ in bench.sent if isinstance(header, Happened)]
    assert 0 < peers.count(PEER) == len(peers) - peers.count(PEER) < 20


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda w: w.cancel(PEER, ID), ErrorCode.cancelled),
        (lambda w: w.overflowed(PEER), ErrorCode.slow_consumer),
        (lambda w: w.end_all(0.0), ErrorCode.shutting_down),
    ],
)
def test_each_end_is_said_once(end: Callable[[Watchers], None], code: ErrorCode) -> None:
    """Cancelled, not reading, or the daemon's stop: one failed with its code, then nothing."""
    bench = Bench()
    bench.add(follow=True)
    end(bench.watchers)
    bench.journal.add("happened", {})
    bench.serve()
    failed = [header for _, header, _ in bench.sent if isinstance(header, Failed)]
    assert [header.code for header in failed] == [code]
    assert bench.kinds[-1] is Failed


def test_a_client_that_is_gone_is_told_nothing() -> None:
    """What a vanished client watched is dropped without a word."""
    bench = Bench()
    bench.add(follow=True)
    bench.watchers.forget(PEER)
    bench.watchers.turn(100.0)
    assert bench.kinds == [Accepted]


def test_a_log_that_cannot_be_read_ends_its_own_view_only() -> None:
    """An error of the disk is told to who reads; others go on."""
    bench = Bench(events=1)
    bench.watchers.add(PEER, ID, Broken(), follow=True, credit=1, now=0.0)
    bench.add(Peer("control", b"other"))
    bench.serve()
    (failed,) = (header for _, header, _ in bench.sent if isinstance(header, Failed))
    assert (failed.code, failed.id) == (ErrorCode.internal, ID)
    assert bench.kinds[-1] is Done


def test_the_journal_is_bounded_in_number_and_size() -> None:
    """The oldest event makes room for the newest; serials go on; a long text is cut."""
    journal = Journal(keep=3, clock=lambda: 1.5)
    for n in range(5):
        journal.add("happened", {"n": n, "text": "x" * 10_000})
    kept = journal.last(None)
    assert [event.serial for event in kept] == [3, 4, 5] == [journal.first_serial, 4, 5]
    assert kept[-1].fields["n"] == 4
    assert len(str(kept[-1].fields["text"])) == 4000
    assert journal.last(1) == [journal.at(5)]
    assert isinstance(kept[0], EventBody)
