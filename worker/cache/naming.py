"""The fingerprint of a loaded model, from its files and what became of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..checkpoints.draft_config import DraftConfig
from .identity import Fingerprint, text_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a model came from: its configurations, and the dtype it came to compute in."""

    target_config: dict[str, Any]
    draft_folder: Path | None
    draft_shape: DraftConfig | None
    dtype: str


def fingerprint_of(origin: Origin, tokenizer: Any, chunk_tokens: int) -> Fingerprint:
    """What its states depend on beside the weights."""
    folder, shape = origin.draft_folder, origin.draft_shape
    quantisation = origin.target_config.get("quantization")
    return Fingerprint(
        target_config=config_digest(origin.target_config),
        draft_config=None if folder is None else text_digest((folder / "config.json").read_text()),
        quantisation=json.dumps(quantisation, sort_keys=True)
        if origin.dtype == "as stored"
        else "none",
        dtype=origin.dtype,
        layer_ids=() if shape is None else shape.target_layer_ids,
        draft_window=None if shape is None else shape.sliding_window,
        template=text_digest(str(getattr(tokenizer, "chat_template", "") or "")),
        kv_quantisation="none",
        chunk_tokens=chunk_tokens,
        compute=_compute(),
    )


def config_digest(config: dict[str, Any]) -> str:
    """The content of a configuration, whatever its layout."""
    return text_digest(json.dumps(config, sort_keys=True, default=str))


def _compute() -> str:
    """Whose kernels decide the last bits."""
    versions = [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]
    return ", ".join([*versions, str(mx.default_device())])
