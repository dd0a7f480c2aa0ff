"""Every message of the wire, as typed values.

A *header* is what the supervisor reads; a *body* passes through it unread.
``docs/protocol.md`` is the normative description.
"""

from __future__ import annotations

from .answers import Accepted, CacheState, Chunk, Done, Event, Failed, Snapshot, Welcome
from .base import Body, Header, Report
from .control import ClearCache, Pin, ReadCache, Retire, Shutdown, Spawn, Status
from .fields import (
    WINDOW_CHUNKS,
    Count,
    Credit,
    Epoch,
    Milliseconds,
    Name,
    RequestId,
    Seconds,
    Sentence,
    Text,
    Token,
)
from .generation import ChatMessage, ChunkBody, DoneBody, GenerateBody, Sampling
from .kinds import (
    BODY_MAY_BE_EMPTY,
    BODY_OF,
    FromClient,
    FromControl,
    FromWorker,
    ToClient,
    ToWorker,
)
from .model import CacheBody, CacheSettings, LoadBody, LoadedBody
from .requests import AddCredit, Cancel, Generate, Hello
from .status import ModelStatus, SnapshotBody, WorkerStatus
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

__all__ = [
    "BODY_MAY_BE_EMPTY",
    "BODY_OF",
    "WINDOW_CHUNKS",
    "Accepted",
    "AddCredit",
    "Assign",
    "Body",
    "CacheBody",
    "CacheSettings",
    "CacheState",
    "Cancel",
    "ChatMessage",
    "Chunk",
    "ChunkBody",
    "ClearCache",
    "Count",
    "Credit",
    "Done",
    "DoneBody",
    "Epoch",
    "Event",
    "Failed",
    "FromClient",
    "FromControl",
    "FromWorker",
    "Generate",
    "GenerateBody",
    "Header",
    "Hello",
    "Load",
    "LoadBody",
    "LoadFailed",
    "Loaded",
    "LoadedBody",
    "Milliseconds",
    "ModelStatus",
    "Name",
    "Pin",
    "Ping",
    "Pong",
    "Progress",
    "ReadCache",
    "Register",
    "Registered",
    "Report",
    "RequestId",
    "Retire",
    "Sampling",
    "Seconds",
    "Sentence",
    "Shutdown",
    "Snapshot",
    "SnapshotBody",
    "Spawn",
    "Status",
    "Stop",
    "Text",
    "ToClient",
    "ToWorker",
    "Token",
    "Unload",
    "Unloaded",
    "Welcome",
    "WorkerStatus",
]
