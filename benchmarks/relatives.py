"""Relatives of the embedded model: one of its family, and one of another, of about its size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3

from dflashd.worker.checkpoints.sources import resolve

from .workload import PAIR, SILENCE

OTHER_FAMILY: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
    "eos_token_id": 2,
}
"""The embedded llama's sizes in qwen3's shape."""


def sibling(folder: Path) -> Path:
    """The embedded model with other weights: one norm is scaled, so that nothing is shared."""
    source = resolve(PAIR.target, SILENCE, "target")
    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    arrays: Any = mx.load(str(file))
    arrays["model.norm.weight"] = arrays["model.norm.weight"] * 1.001
    changed = folder / "changed.safetensors"
    mx.save_safetensors(str(changed), arrays, {"format": "mlx"})
    changed.replace(file)
    return folder


def stranger(folder: Path) -> Path:
    """A qwen3 of random weights with the embedded model's tokenizer."""
    source = resolve(PAIR.target, SILENCE, "target")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    (folder / "config.json").write_text(json.dumps(OTHER_FAMILY))
    model = qwen3.Model(qwen3.ModelArgs.from_dict(OTHER_FAMILY))
    model.set_dtype(mx.bfloat16)
    arrays: Any = tree_flatten(model.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(arrays), {"format": "mlx"})
    return folder
