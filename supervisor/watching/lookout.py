"""What the daemon tells about itself: its events, the workers' logs, the shell's own metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import final

from msgspec import structs

from ...protocol.messages import (
    AddCredit,
    Body,
    Cancel,
    Header,
    MetricsBody,
    Subscribe,
)
from ..config.limits import Limits
from ..core.effects import StartWatch
from ..core.events import ClientOverflowed, ClientVanished, Peer
from ..core.metrics import Histogram
from ..core.metrics_page import counter, gauge, histogram
from ..logs.log import dropped_lines, line_of, log
from ..logs.worker_logs import WorkerLogs
from .feed import EventFeed, LogFeed
from .journal import Journal
from .watchers import Watchers

Send = Callable[[Peer, Header, bytes | Body], None]


@final
class Lookout:
    """One for each daemon, on its loop. ``send`` is set by whoever has the sockets.

    ``limits`` are those in effect.
    """

    def __init__(
        self,
        limits: Callable[[], Limits],
        logs: WorkerLogs,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.lag = Histogram()
        """How late the loop came to what was due."""
        self.send: Send = _unheard
        self._logs = logs
        self._on_event = on_event
        self._journal = Journal(limits().events_kept)
        self._watchers = Watchers(limits().watchers, lambda: limits().keepalive_s, self._send)
        self._is_due = False

    def note(self, name: str, fields: Mapping[str, str | float]) -> None:
        """Keep an event, log it, and let those know who follow."""
        self._journal.add(name, fields)
        log.info(line_of(name, fields))
        self._on_event(name)
        self._is_due = True

    def start(self, effect: StartWatch) -> None:
        """Let a client watch."""
        header = effect.header
        if isinstance(header, Subscribe):
            feed = EventFeed(self._journal, header.last, follow=header.follow)
        else:
            log = self._logs.of(effect.worker)
            feed = LogFeed(log, header.lines, follow=header.follow)
        self._watchers.add(
            effect.peer,
            header.id,
            feed,
            follow=header.follow,
            credit=header.credit,
            now=time.monotonic(),
        )
        self._is_due = True

    def takes(self, peer: Peer, header: Header) -> bool:
        """Whether a message is about a watch; then it is done."""
        if not isinstance(header, AddCredit | Cancel) or not self._watchers.has(peer, header.id):
            return False
        if isinstance(header, AddCredit):
            self._watchers.grant(peer, header.id, header.chunks)
            self._is_due = True
        else:
            self._watchers.cancel(peer, header.id)
        return True

    def look(self) -> None:
        """See what became of the logs since the last time."""
        for error in self._logs.new_errors():
            self.note("log_failed", {"reason": error})
        self._is_due = True

    def turn(self) -> bool:
        """Send to watchers what there is; True when there is more at once."""
        if self._is_due:
            self._is_due = bool(self._watchers.count) and self._watchers.turn(time.monotonic())
        return self._is_due

    def lost(self, event: ClientVanished | ClientOverflowed) -> None:
        """A client is gone, or reads nothing."""
        if isinstance(event, ClientVanished):
            self._watchers.forget(event.peer)
        else:
            self._watchers.overflowed(event.peer)

    def end(self) -> None:
        """The daemon stops: the last events leave."""
        self._watchers.end_all(time.monotonic())

    def counters(self) -> dict[str, float]:
        """The shell's own numbers for the status."""
        return {
            "events": self._journal.last_serial,
            "watchers": self._watchers.count,
            "log_lines_dropped": dropped_lines(),
            "worker_log_bytes_lost": self._logs.lost_bytes,
        }

    def measured(
        self,
        core: MetricsBody,
        doors: Mapping[str, Mapping[str, int]],
        internal_errors: int,
        busy_cpu_s: float,
    ) -> MetricsBody:
        """The core's metrics and the shell's."""
        messages = [
            ({"socket": name, "what": what}, n)
            for name, counts in doors.items()
            for what, n in counts.items()
        ]
        rows = (
            ("internal_errors", "Mistakes of the daemon itself.", internal_errors),
            ("busy_cpu_seconds", "CPU time of handling messages.", busy_cpu_s),
            ("events", "Events that happened.", self._journal.last_serial),
            ("log_lines_dropped", "Lines of the daemon that nobody read.", dropped_lines()),
            ("worker_log_lost_bytes", "Cut off a log uncopied.", self._logs.lost_bytes),
        )
        families = (
            *core.families,
            histogram("dflashd_loop_lag_seconds", "Late to what was due.", "", {"": self.lag}),
            gauge("dflashd_watchers", "Clients that follow events or logs.", self._watchers.count),
            counter("dflashd_socket_faults_total", "Messages that went wrong.", messages),
            *(counter(f"dflashd_{name}_total", help, [({}, n)]) for name, help, n in rows),
        )
        return structs.replace(core, families=families)

    def _send(self, peer: Peer, header: Header, body: Body | None) -> None:
        self.send(peer, header, b"" if body is None else body)


def _unheard(peer: Peer, header: Header, body: bytes | Body) -> None:
    raise RuntimeError(f"nobody sends {header} to {peer}, nor {body}")
