"""Bounds and time limits of the supervisor; each default exists here and nowhere else."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Duration = Annotated[float, Meta(gt=0, le=86_400)]
Bound = Annotated[int, Meta(ge=1, le=2**20)]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the core may hold, and how long each of its states may last (seconds)."""

    # what is held
    active_requests_per_worker: Annotated[
        Bound, Meta(description="requests one worker computes side by side; the rest wait")
    ] = 8
    queued_requests_per_model: Annotated[
        Bound,
        Meta(
            description="waiting requests of one model; more are refused as overloaded, and of"
            " each client those beyond what it leaves free: one alone may have half"
        ),
    ] = 512
    queued_requests: Annotated[Bound, Meta(description="the same of all models together")] = 2048
    queued_bytes: Annotated[int, Meta(ge=2**20, description="the same in bytes of prompts")] = (
        256 * 2**20
    )
    pending_commands: Annotated[Bound, Meta(description="control commands waiting to end")] = 1024

    # from nothing to ready
    spawn_timeout_s: Annotated[Duration, Meta(description="until the process exists")] = 15
    register_timeout_s: Annotated[Duration, Meta(description="until a process registers")] = 60
    load_stall_s: Annotated[
        Duration, Meta(description="longest time a load may go on without any progress")
    ] = 300

    # at work
    ping_interval_s: Annotated[Duration, Meta(description="between two health questions")] = 1
    pong_timeout_s: Annotated[
        Duration, Meta(description="a ready worker that answers no ping for so long is replaced")
    ] = 30
    loading_pong_timeout_s: Annotated[
        Duration, Meta(description="the same while it loads (imports may hold the interpreter)")
    ] = 120
    prefill_stall_s: Annotated[
        Duration, Meta(description="no engine step for so long, a request in its prompt phase")
    ] = 180
    decode_stall_s: Annotated[
        Duration, Meta(description="no engine step for so long, all requests past their prompt")
    ] = 60
    cancel_timeout_s: Annotated[
        Duration, Meta(description="a cancelled client is answered after so long in any case")
    ] = 10
    release_timeout_s: Annotated[
        Duration,
        Meta(description="a worker still computing an ended request after so long is replaced"),
    ] = 240
    deadline_grace_s: Annotated[
        Duration, Meta(description="a worker may end a request so long after its deadline")
    ] = 2
    keepalive_s: Annotated[
        Duration, Meta(description="a silent request's client is told of it so often")
    ] = 2

    # room in memory
    inspect_timeout_s: Annotated[
        Duration, Meta(description="for reading a model's sizes from its files")
    ] = 10
    max_wait_behind_s: Annotated[
        Duration,
        Meta(description="a model kept out by others' steady traffic has them drained after it"),
    ] = 30
    min_residency_s: Annotated[
        Duration, Meta(description="nobody makes a model go that was loaded so shortly ago")
    ] = 5
    evict_drain_timeout_s: Annotated[
        Duration, Meta(description="time for the running requests of a model that makes room")
    ] = 600

    # from ready to nothing
    drain_timeout_s: Annotated[
        Duration, Meta(description="time for running requests when a model is retired")
    ] = 60
    unload_timeout_s: Annotated[
        Duration, Meta(description="a worker that does not unload a model in time is replaced")
    ] = 60
    shutdown_drain_s: Annotated[
        Duration, Meta(description="time for running requests when the daemon stops")
    ] = 10
    stop_timeout_s: Annotated[Duration, Meta(description="from polite stop to SIGTERM")] = 5
    terminate_timeout_s: Annotated[Duration, Meta(description="from SIGTERM to SIGKILL")] = 5
    kill_timeout_s: Annotated[Duration, Meta(description="from SIGKILL to the next SIGKILL")] = 5

    # after a failure
    backoff_first_s: Annotated[Duration, Meta(description="wait before the first restart")] = 0.5
    backoff_limit_s: Annotated[Duration, Meta(description="longest wait before a restart")] = 60
    backoff_wait_s: Annotated[
        Duration, Meta(description="requests wait for a restart that is nearer than this")
    ] = 5
    failures_before_fatal: Annotated[
        Bound, Meta(description="so many failures inside the window, and a worker stays down")
    ] = 5
    failure_window_s: Annotated[Duration, Meta(description="how long a failure counts")] = 300
    stable_s: Annotated[
        Duration, Meta(description="ready for so long, and earlier failures are forgotten")
    ] = 120

    # what is told
    events_kept: Annotated[
        Bound, Meta(description="last events, for those who ask what happened")
    ] = 1000
    watchers: Annotated[
        Bound, Meta(description="clients that may follow events and logs at the same time")
    ] = 64
    log_bytes_per_worker: Annotated[
        int, Meta(ge=2**16, description="size of a worker's log, beyond which its oldest half goes")
    ] = 16 * 2**20
    log_bytes: Annotated[int, Meta(ge=2**20, description="size of all workers' logs together")] = (
        256 * 2**20
    )
