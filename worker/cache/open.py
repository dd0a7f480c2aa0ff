"""The cache of a model that was just loaded: its manager, or the reason why it has none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.messages import CacheSettings
from ...protocol.paths import cache_dir
from .disk import DiskSettings
from .identity import CacheIdentity, Fingerprint
from .layers import cuttable, unknown_kind
from .manager import CacheManager
from .registry import CacheRegistry

CONFIGURED = "DFLASHD_MODELS"
"""The environment variable in which the supervisor names all configured models, one a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCache:
    """What requests of a model carry. ``reason``: why it is off, where it is.

    ``cuttable``: its states can be cut to any prefix, so it needs no snapshots on the way.
    """

    manager: CacheManager | None
    cuttable: bool
    reason: str = ""


def open_cache(
    registry: CacheRegistry,
    identity: CacheIdentity,
    fingerprint: Fingerprint,
    settings: CacheSettings,
    caches: list[Any],
) -> OpenCache:
    """Resolve a model's manager; ``caches`` are fresh ones of its layers, target's and draft's."""
    unknown = unknown_kind(caches)
    if unknown is not None:
        return OpenCache(
            manager=None, cuttable=False, reason=f"off: {unknown} is a cache kind we cannot store"
        )
    manager = registry.resolve(identity, fingerprint, settings, disk_settings(settings))
    reason = "" if manager is not None else "off: switched off in the configuration"
    return OpenCache(manager=manager, cuttable=cuttable(caches), reason=reason)


def disk_settings(settings: CacheSettings) -> DiskSettings | None:
    """Where the disk cache is; None if there is none."""
    if not settings.disk_bytes:
        return None
    names = os.environ.get(CONFIGURED)
    return DiskSettings(
        root=Path(settings.disk_dir) if settings.disk_dir else cache_dir() / "prefix",
        model_bytes=settings.disk_bytes,
        root_bytes=settings.disk_root_bytes,
        configured=None if names is None else frozenset(names.splitlines()),
    )
