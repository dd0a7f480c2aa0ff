"""What is configured in the simulated world: models, groups, limits that are reached often."""

from __future__ import annotations

import msgspec

from dflashd.protocol.messages import CacheBody, LoadedBody
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.model_section import ModelSection

LIMITS = Limits(
    active_requests_per_worker=3,
    queued_requests_per_model=5,
    queued_requests=12,
    pending_commands=12,
    spawn_timeout_s=5,
    register_timeout_s=8,
    load_stall_s=10,
    pong_timeout_s=6,
    loading_pong_timeout_s=12,
    prefill_stall_s=12,
    decode_stall_s=8,
    cancel_timeout_s=3,
    release_timeout_s=15,
    drain_timeout_s=10,
    unload_timeout_s=6,
    inspect_timeout_s=4,
    max_wait_behind_s=6,
    min_residency_s=2,
    evict_drain_timeout_s=10,
    shutdown_drain_s=5,
    stop_timeout_s=2,
    terminate_timeout_s=2,
    kill_timeout_s=2,
    backoff_limit_s=20,
    backoff_wait_s=1,
    failure_window_s=60,
    stable_s=30,
)
GROUPS = {"a": None, "b": None, "c": "g", "d": "g", "e": "g", "h": None}
MODELS = tuple(GROUPS)
ASKED = (4, 4, 3, 3, 1, 1)
"""How often each of them is asked for."""

LATER = frozenset({"h"})
"""Configured by a reload only; a group may have had the name before."""

TTL_S = {"b": 6.0, "c": 10.0}
"""After which an idle model is unloaded."""


def sections(*, later: bool = False) -> dict[str, ModelSection]:
    """The models that are configured at the start, or may be ``later``."""
    return {
        name: ModelSection(target=name, group=group, idle_ttl_s=TTL_S.get(name))
        for name, group in GROUPS.items()
        if later or name not in LATER
    }


MIB = 2**20
SIZES = {"a": 300 * MIB, "b": 300 * MIB, "c": 200 * MIB, "d": 200 * MIB, "e": 2000 * MIB}
"""Of the models' weights; those that a reload adds are small. One never fits."""

POOL_BYTES = 1000 * MIB
"""Room for two workers with a model or two each."""

FILLING = ("a", "b")
"""Two models that leave no room for a third worker."""


def size_bytes(model: str) -> int:
    """What a model's weights take."""
    return SIZES.get(model, 50 * MIB)


def loaded(model: str) -> bytes:
    """A worker's report of a load."""
    return msgspec.msgpack.encode(
        LoadedBody(
            digest="d",
            engine="dflash",
            block_tokens=8,
            context_tokens=100,
            memory_bytes=size_bytes(model),
            device="cpu",
            dtype="float32",
        )
    )


CACHE = msgspec.msgpack.encode(CacheBody(state="open"))
