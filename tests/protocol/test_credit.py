"""Credit keeps a stream bounded, moving, and without a gap."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dflashd.protocol.credit import ReceiveWindow, SendWindow
from dflashd.protocol.messages import WINDOW_CHUNKS


class Stream(RuleBasedStateMachine):
    """A sender and a reader with chunks and credit in flight between them, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = ReceiveWindow()
        self.sender = SendWindow(self.reader.window)
        self.chunks_in_flight = 0
        self.credit_in_flight: list[int] = []
        self.unread = 0
        self.sent = 0
        self.consumed = 0

    @precondition(lambda self: self.sender.open)
    @rule(count=st.integers(1, 80))
    def send(self, count: int) -> None:
        for _ in range(count):
            if self.sender.take():
                self.chunks_in_flight += 1
                self.sent += 1

    @rule(count=st.integers(1, 80))
    def arrive(self, count: int) -> None:
        for _ in range(min(count, self.chunks_in_flight)):
            assert self.reader.arrived()
            self.chunks_in_flight -= 1
            self.unread += 1

    @rule(count=st.integers(1, 80))
    def read(self, count: int) -> None:
        for _ in range(min(count, self.unread)):
            self.unread -= 1
            self.consumed += 1
            granted = self.reader.consumed()
            if granted:
                self.credit_in_flight.append(granted)

    @precondition(lambda self: self.credit_in_flight)
    @rule()
    def grant(self) -> None:
        self.sender.add(self.credit_in_flight.pop(0))

    @invariant()
    def window_bounds_what_is_unread(self) -> None:
        assert self.chunks_in_flight + self.unread <= WINDOW_CHUNKS
        assert self.sent - self.consumed == self.chunks_in_flight + self.unread

    @invariant()
    def reader_that_reads_never_starves(self) -> None:
        if not (self.chunks_in_flight or self.unread or self.credit_in_flight):
            assert self.sender.open


TestStream = Stream.TestCase


@given(st.integers(1, WINDOW_CHUNKS), st.integers(0, 500))
def test_any_window_can_carry_any_number_of_chunks(window: int, chunks: int) -> None:
    """A reader that keeps reading gets everything, whatever window it asked with."""
    reader = ReceiveWindow(window)
    sender = SendWindow(window)
    for _ in range(chunks):
        assert sender.take()
        assert reader.arrived()
        granted = reader.consumed()
        assert 0 <= granted <= window
        if granted:
            sender.add(granted)


def test_credit_returns_half_a_window_at_a_time() -> None:
    """Thirty-two chunks of sixty-four are read before credit costs a message."""
    reader = ReceiveWindow()
    assert [reader.consumed() for _ in range(64)] == ([0] * 31 + [32]) * 2


@given(st.lists(st.integers(1, WINDOW_CHUNKS)))
def test_greedy_peer_cannot_unbound_the_sender(grants: list[int]) -> None:
    """However much credit a peer claims to give, the window is the limit."""
    sender = SendWindow(WINDOW_CHUNKS)
    for chunks in grants:
        sender.add(chunks)
    assert sender.chunks == WINDOW_CHUNKS


@pytest.mark.parametrize("window", [1, 2, 64])
def test_sender_without_credit_is_noticed(window: int) -> None:
    """A chunk more than was granted does not pass as one that was."""
    reader = ReceiveWindow(window)
    assert all(reader.arrived() for _ in range(window))
    assert not reader.arrived()
    sender = SendWindow(window)
    assert all(sender.take() for _ in range(window))
    assert not sender.take()
    assert not sender.open
