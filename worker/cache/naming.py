"""The identity and fingerprint of a loaded model, from its files and what became of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..checkpoint import DraftConfig
from .identity import CacheIdentity, Fingerprint, text_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a model came from: its folders' digests and raw configurations."""

    name: str
    target_digest: str
    draft_digest: str | None
    target_config: dict[str, Any]
    draft_folder: Path | None
    draft_shape: DraftConfig | None


def identity_of(origin: Origin) -> CacheIdentity:
    """Which model it is."""
    return CacheIdentity(
        name=origin.name, target_digest=origin.target_digest, draft_digest=origin.draft_digest
    )


def fingerprint_of(origin: Origin, *, dtype: str, tokenizer: Any, chunk_tokens: int) -> Fingerprint:
    """What its states depend on beside the weights."""
    folder, shape = origin.draft_folder, origin.draft_shape
    quantisation = origin.target_config.get("quantization")
    return Fingerprint(
        target_config=_digest(origin.target_config),
        draft_config=None if folder is None else text_digest((folder / "config.json").read_text()),
        quantisation=json.dumps(quantisation, sort_keys=True) if dtype == "as stored" else "none",
        dtype=dtype,
        layer_ids=() if shape is None else shape.target_layer_ids,
        draft_window=None if shape is None else shape.sliding_window,
        template=text_digest(str(getattr(tokenizer, "chat_template", "") or "")),
        kv_quantisation="none",
        chunk_tokens=chunk_tokens,
        compute=_compute(),
    )


def _digest(config: dict[str, Any]) -> str:
    return text_digest(json.dumps(config, sort_keys=True, default=str))


def _compute() -> str:
    """Whose kernels decide the last bits."""
    versions = [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]
    return ", ".join([*versions, str(mx.default_device())])
