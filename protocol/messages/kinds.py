"""Which kinds travel where, and which carry a body."""

from __future__ import annotations

from .answers import Accepted, CacheState, Chunk, Done, Event, Failed, Snapshot, Welcome
from .base import Body, Header
from .control import ClearCache, Pin, ReadCache, Retire, Shutdown, Spawn, Status
from .generation import ChunkBody, DoneBody, GenerateBody
from .model import CacheBody, LoadBody, LoadedBody
from .reload import ConfigBody, Reload, ReloadBody, Reloaded
from .requests import AddCredit, Cancel, Generate, Hello
from .status import SnapshotBody
from .watching import (
    EventBody,
    Happened,
    LogBody,
    LogPart,
    Logs,
    Measured,
    Metrics,
    MetricsBody,
    Subscribe,
)
from .workers import (
    Assign,
    Load,
    Loaded,
    LoadFailed,
    Ping,
    Pong,
    Progress,
    Register,
    Registered,
    Stop,
    Unload,
    Unloaded,
)

FromClient = Hello | Generate | AddCredit | Cancel
FromControl = (
    Hello
    | Status
    | Spawn
    | Retire
    | Pin
    | ReadCache
    | ClearCache
    | Reload
    | Subscribe
    | Logs
    | Metrics
    | Shutdown
    | AddCredit
    | Cancel
)
ToClient = (
    Welcome
    | Accepted
    | Chunk
    | Done
    | Failed
    | Snapshot
    | CacheState
    | Reloaded
    | Event
    | Happened
    | LogPart
    | Measured
)
FromWorker = (
    Register | Progress | Loaded | LoadFailed | Unloaded | Chunk | Done | Failed | CacheState | Pong
)
ToWorker = (
    Registered | Load | Unload | Assign | AddCredit | Cancel | ReadCache | ClearCache | Stop | Ping
)

BODY_OF: dict[type[Header], type[Body]] = {
    Generate: GenerateBody,
    Chunk: ChunkBody,
    Done: DoneBody,
    Snapshot: SnapshotBody,
    CacheState: CacheBody,
    Reload: ConfigBody,
    Reloaded: ReloadBody,
    Happened: EventBody,
    LogPart: LogBody,
    Measured: MetricsBody,
    Load: LoadBody,
    Loaded: LoadedBody,
    Assign: GenerateBody,
}
"""The kinds that carry a body; every other kind has an empty body frame."""

BODY_MAY_BE_EMPTY = frozenset[type[Header]]({Done, Reload})
"""Kinds of :data:`BODY_OF` whose body is left out in some uses."""
