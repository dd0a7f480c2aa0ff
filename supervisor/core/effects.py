"""What to do, in the imperative: the only output of the core."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...protocol.messages import (
    Body,
    Header,
    LoadBody,
    Logs,
    MetricsBody,
    SnapshotBody,
    Subscribe,
)
from ..config.configuration import Config
from .events import Peer


class SendToClient(Struct, frozen=True, kw_only=True):
    """Send a message to one client; never waits."""

    peer: Peer
    header: Header
    body: bytes | Body = b""


class SendSnapshot(Struct, frozen=True, kw_only=True):
    """Answer a status question; the shell adds its own counters."""

    peer: Peer
    id: bytes
    snapshot: SnapshotBody


class SendMetrics(Struct, frozen=True, kw_only=True):
    """Answer a question about metrics; the shell adds its own."""

    peer: Peer
    id: bytes
    metrics: MetricsBody


class StartWatch(Struct, frozen=True, kw_only=True):
    """Let a client watch the events, or the log of ``worker``."""

    peer: Peer
    header: Subscribe | Logs
    worker: str = ""


class SendToWorker(Struct, frozen=True, kw_only=True):
    """Send a message to one worker incarnation; never waits."""

    worker: str
    epoch: int
    header: Header
    body: bytes | Body = b""


class SpawnProcess(Struct, frozen=True, kw_only=True):
    """Start a worker process; answered by ProcessStarted or ProcessStartFailed.

    ``cpu_share``: among how many workers the CPUs are divided, should all compute at once.
    """

    worker: str
    epoch: int
    cpu_share: int = 1


class InspectModel(Struct, frozen=True, kw_only=True):
    """Look at the files that ``body`` names; answered by ModelInspected.

    ``concurrency``: how many requests its worker may run at once; ``pool_bytes``: for all models.
    """

    model: str
    body: LoadBody
    concurrency: int
    pool_bytes: int


class SignalProcess(Struct, frozen=True, kw_only=True):
    """Signal a worker's process group; a process that is unknown counts as exited."""

    worker: str
    epoch: int
    signal: Literal["terminate", "kill"]


class ReadConfig(Struct, frozen=True, kw_only=True):
    """Read the configuration file, or look at the text in ``body``; answered by ConfigRead or
    ConfigRefused with the same ``n``. After a ``dry_run`` a change of the file is still news.
    """

    n: int
    dry_run: bool = False
    body: bytes = b""


class AdoptConfig(Struct, frozen=True, kw_only=True):
    """This configuration is in effect now."""

    config: Config


class Note(Struct, frozen=True, kw_only=True):
    """Write down that something worth knowing happened."""

    name: str
    fields: dict[str, str | float]


class StopServing(Struct, frozen=True, kw_only=True):
    """All workers are gone: flush, close the sockets and leave."""


Effect = (
    SendToClient
    | SendSnapshot
    | SendMetrics
    | StartWatch
    | SendToWorker
    | SpawnProcess
    | SignalProcess
    | InspectModel
    | ReadConfig
    | AdoptConfig
    | Note
    | StopServing
)
