"""What the shell counts and knows itself, beside the core: its part of status and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import final

from msgspec import structs

from ..protocol.messages import MetricsBody, ServiceStatus, SnapshotBody
from .sockets import Sockets
from .watching.lookout import Lookout


@final
class ShellFigures:
    """``services`` serve clients beside the local sockets; ``problems`` are sentences."""

    def __init__(
        self,
        sockets: Sockets,
        lookout: Lookout,
        *,
        services: Callable[[], tuple[ServiceStatus, ...]],
        problems: Callable[[], tuple[str, ...]],
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.busy_cpu_s = 0.0
        """CPU time of handling messages."""
        self._sockets = sockets
        self._lookout = lookout
        self._services = services
        self._problems = problems

    def completed(self, snapshot: SnapshotBody) -> SnapshotBody:
        """The core's state and the shell's."""
        counters = {
            **snapshot.counters,
            **self.counters,
            **self._sockets.counters(),
            **self._lookout.counters(),
            "busy_cpu_s": self.busy_cpu_s,
        }
        return structs.replace(
            snapshot, counters=counters, services=self._services(), problems=self._problems()
        )

    def measured(self, metrics: MetricsBody) -> MetricsBody:
        """The core's metrics and the shell's."""
        doors = {door.name: door.counters for door in self._sockets}
        errors = self.counters["internal_errors"]
        return self._lookout.measured(metrics, doors, errors, self.busy_cpu_s)
