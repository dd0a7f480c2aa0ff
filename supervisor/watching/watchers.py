"""Those who watch: each gets its feed's messages within the credit it has granted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ...protocol.credit import SendWindow
from ...protocol.errors import ErrorCode
from ...protocol.messages import Accepted, Body, Done, Failed, Header
from ..core.events import Peer
from ..core.refusals import STOPPING
from .feed import Feed

STEPS_PER_TURN = 8
"""Steps of one feed before others, and requests, have their turn."""

Send = Callable[[Peer, Header, Body | None], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Watcher:
    """One subscription or log view."""

    peer: Peer
    id: bytes
    feed: Feed
    follow: bool
    credit: SendWindow
    told_at: float


@final
class Watchers:
    """All watchers, at most ``limit``. ``send`` never waits; nor does anything here.

    ``keepalive_s`` is asked each time: another configuration may have another.
    """

    def __init__(self, limit: int, keepalive_s: Callable[[], float], send: Send) -> None:
        self._limit = limit
        self._keepalive_s = keepalive_s
        self._send = send
        self._watchers: dict[tuple[Peer, bytes], Watcher] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._watchers)

    def add(
        self, peer: Peer, id: bytes, feed: Feed, *, follow: bool, credit: int, now: float
    ) -> None:
        """Take one more watcher, or refuse it."""
        if (peer, id) in self._watchers:
            # Without an id: the answer must not end the watch that is there already.
            sentence = "this request id is in use already"
            self._send(peer, Failed(code=ErrorCode.bad_request, message=sentence), None)
            return
        if len(self._watchers) >= self._limit:
            sentence = f"{self._limit} watch events or logs already: end one of them first"
            failed = Failed(id=id, code=ErrorCode.overloaded, message=sentence, retryable=True)
            self._send(peer, failed, None)
            return
        self._watchers[peer, id] = Watcher(
            peer=peer, id=id, feed=feed, follow=follow, credit=SendWindow(credit), told_at=now
        )
        self._send(peer, Accepted(id=id), None)

    def has(self, peer: Peer, id: bytes) -> bool:
        """Whether this is one of ours."""
        return (peer, id) in self._watchers

    def grant(self, peer: Peer, id: bytes, chunks: int) -> None:
        """Let a watcher have more messages."""
        self._watchers[peer, id].credit.add(chunks)

    def cancel(self, peer: Peer, id: bytes) -> None:
        """End a watch as its client asked."""
        self._fail(self._watchers[peer, id], ErrorCode.cancelled, "cancelled by its client")

    def forget(self, peer: Peer) -> None:
        """Drop all that a client watched which is gone."""
        for watcher in self._of(peer):
            del self._watchers[peer, watcher.id]

    def overflowed(self, peer: Peer) -> None:
        """End all that a client watches which reads nothing at all, not even signs of life."""
        for watcher in self._of(peer):
            sentence = "this client does not read its answers"
            self._fail(watcher, ErrorCode.slow_consumer, sentence)

    def turn(self, now: float) -> bool:
        """Send what there is and may be sent; True when there is more at once."""
        more = False
        for watcher in list(self._watchers.values()):
            try:
                more |= self._serve(watcher, now)
            except OSError as error:
                self._fail(watcher, ErrorCode.internal, f"the log cannot be read: {error}")
        return more

    def end_all(self, now: float) -> None:
        """Send what still may be sent, and end every watch: the daemon stops."""
        while self.turn(now):
            pass
        for watcher in list(self._watchers.values()):
            self._fail(watcher, ErrorCode.shutting_down, STOPPING)

    def _serve(self, watcher: Watcher, now: float) -> bool:
        for _ in range(STEPS_PER_TURN):
            if watcher.feed.is_at_end:
                if not watcher.follow:
                    del self._watchers[watcher.peer, watcher.id]
                    self._send(watcher.peer, Done(id=watcher.id), None)
                    return False
                break
            if not watcher.credit.open:
                break
            message = watcher.feed.next(watcher.id)
            if message is not None:
                watcher.credit.take()
                watcher.told_at = now
                self._send(watcher.peer, *message)
        else:
            return True
        if now - watcher.told_at >= self._keepalive_s():
            watcher.told_at = now
            self._send(watcher.peer, Accepted(id=watcher.id), None)
        return False

    def _of(self, peer: Peer) -> list[Watcher]:
        return [watcher for watcher in self._watchers.values() if watcher.peer == peer]

    def _fail(self, watcher: Watcher, code: ErrorCode, sentence: str) -> None:
        del self._watchers[watcher.peer, watcher.id]
        self._send(watcher.peer, Failed(id=watcher.id, code=code, message=sentence), None)
