"""Bodies about a model: how to load it, what was found, what its cache does."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .base import Body, Report
from .fields import Count, Name, Sentence
from .generation import Sampling


class CacheSettings(Body, frozen=True, kw_only=True):
    """A model's prefix cache. Prompts are kept on disk only where ``disk_bytes`` allows it."""

    enabled: bool = True
    ram_bytes: Count = 2 * 2**30
    disk_bytes: Count = 0
    disk_root_bytes: Count = 64 * 2**30
    disk_dir: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    reuse: Literal["longest", "aligned"] = "longest"


class LoadBody(Body, frozen=True, kw_only=True):
    """A model's configuration, as the worker needs it."""

    target: Annotated[str, Meta(min_length=1, max_length=4096)]
    draft: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "keep"] = "auto"
    block_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    context_tokens: Annotated[int, Meta(ge=1)] | None = None
    prefill_chunk_tokens: Annotated[int, Meta(ge=1, le=65536)] = 512
    max_tokens: Annotated[int, Meta(ge=1, le=2**20)] = 512
    sampling: Sampling = Sampling()
    cache: CacheSettings = CacheSettings()
    backend: Name = "dflash"


class LoadedBody(Report, frozen=True, kw_only=True):
    """What a worker found when it loaded a model."""

    digest: Annotated[str, Meta(max_length=128)]
    engine: Literal["dflash", "plain"]
    block_tokens: Count
    context_tokens: Count
    memory_bytes: Count
    device: Annotated[str, Meta(max_length=64)]
    dtype: Annotated[str, Meta(max_length=32)]
    shared_bytes: Count = 0
    target_digest: Annotated[str, Meta(max_length=128)] = ""
    draft_digest: Annotated[str, Meta(max_length=128)] = ""
    block_tokens_limit: Count = 0


class CacheBody(Report, frozen=True, kw_only=True):
    """One model's prefix cache, since its model was loaded. Maps count by reason or kind."""

    state: Annotated[str, Meta(max_length=256)]
    identity: Annotated[str, Meta(max_length=128)] = ""
    fingerprint: Annotated[str, Meta(max_length=128)] = ""
    ram_entries: Count = 0
    ram_tokens: Count = 0
    ram_bytes: Count = 0
    ram_limit_bytes: Count = 0
    disk: Sentence = ""
    disk_entries: Count = 0
    disk_bytes: Count = 0
    disk_limit_bytes: Count = 0
    disk_queued: Count = 0
    disk_written: Count = 0
    disk_written_bytes: Count = 0
    disk_dropped: dict[str, Count] = {}
    disk_removed: Count = 0
    disk_bad_files: dict[str, Count] = {}
    hits: dict[str, Count] = {}
    misses: dict[str, Count] = {}
    cached_tokens: Count = 0
    stored: Count = 0
    not_stored: dict[str, Count] = {}
    evictions: Count = 0
    superseded: Count = 0
