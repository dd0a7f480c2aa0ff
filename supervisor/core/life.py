"""Where a worker, a model and a request may be in their lives."""

from __future__ import annotations

from enum import Enum, StrEnum


class WorkerState(StrEnum):
    """Where a process slot is in its life; ``stopped`` and ``fatal`` need no deadline.

    ``loading`` is alive without any model yet, ``ready`` has one, ``busy`` computes.
    """

    stopped = "stopped"
    spawning = "spawning"
    registering = "registering"
    loading = "loading"
    ready = "ready"
    busy = "busy"
    stopping = "stopping"
    lost = "lost"
    backoff = "backoff"
    fatal = "fatal"


class Cause(StrEnum):
    """Why a worker failed, in a word that counts: one of few, whatever its sentence says."""

    start_failed = "start_failed"
    start_timeout = "start_timeout"
    register_timeout = "register_timeout"
    load_stalled = "load_stalled"
    unload_timeout = "unload_timeout"
    silent = "silent"
    stalled = "stalled"
    unreachable = "unreachable"
    kept_request = "kept_request"
    broke_protocol = "broke_protocol"
    killed = "killed"
    exited = "exited"
    left = "left"
    unusable = "unusable"


WITHOUT_PROCESS = frozenset({WorkerState.stopped, WorkerState.backoff, WorkerState.fatal})
"""States in which no process of the worker may exist."""


COMING = frozenset({WorkerState.spawning, WorkerState.registering})
"""States on the way from nothing to alive."""


ALIVE = frozenset({WorkerState.loading, WorkerState.ready, WorkerState.busy})
"""States in which a worker takes orders, and must answer pings."""


class Residency(StrEnum):
    """Where a model is in its worker.

    ``loading`` begins when its place is given to it: its worker may have to be started first.
    ``unloading`` ends when the worker says so, or when its process is gone.
    """

    absent = "absent"
    loading = "loading"
    ready = "ready"
    draining = "draining"
    unloading = "unloading"
    backoff = "backoff"
    fatal = "fatal"


SERVED = frozenset({Residency.ready, Residency.draining})
"""States of a model that requests may be running on."""


OUTSIDE = frozenset({Residency.absent, Residency.backoff, Residency.fatal})
"""States in which nothing of a model is in any process."""


class Phase(Enum):
    """Where a request is; ``ended`` is answered, though its worker may not know it yet."""

    queued = "queued"
    running = "running"
    cancelling = "cancelling"
    ended = "ended"


class StopStep(Enum):
    """How hard a stopping worker has been asked to leave."""

    polite = "polite"
    terminate = "terminate"
    kill = "kill"
