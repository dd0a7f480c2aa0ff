"""Whose cache it is, and what makes a stored snapshot valid: two values with short stable forms."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

FORMAT_VERSION = 1
"""Of a snapshot's content; raised when what is stored, or what it means, changes."""

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_SHORT_HEX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheIdentity:
    """A model: its configured name and the digests of its weights."""

    name: str
    target_digest: str
    draft_digest: str | None

    @property
    def short(self) -> str:
        """A form for directories, logs and status: readable, and as good as unique."""
        return f"{self.slug}-{_digest(asdict(self))}"

    @property
    def slug(self) -> str:
        """The name as far as a directory can show it."""
        return _UNSAFE.sub("-", self.name).strip("-").lower()[:40] or "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """All that a stored state depends on beside the weights.

    ``target_config`` and ``draft_config`` are digests of the raw ``config.json``: rope scaling
    changes states without touching a weight. ``compute`` names library versions and device, whose
    kernels decide the last bits. ``chunk_tokens`` decides where prefill passes end.
    """

    target_config: str
    draft_config: str | None
    quantisation: str
    dtype: str
    layer_ids: tuple[int, ...]
    draft_window: int | None
    template: str
    kv_quantisation: str
    chunk_tokens: int
    compute: str
    version: int = FORMAT_VERSION

    @property
    def short(self) -> str:
        """A form for directories, logs and status."""
        return _digest(asdict(self))


def text_digest(text: str) -> str:
    """SHA-256 of a text, 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(fields: dict[str, object]) -> str:
    return text_digest(json.dumps(fields, sort_keys=True))[:_SHORT_HEX]
