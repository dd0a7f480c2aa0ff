"""A draft network from its folder: names, shapes and quantisation as checkpoints have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

from ...protocol.errors import DflashError, ErrorCode
from ..checkpoints.draft_config import DraftConfig
from ..checkpoints.fields import shown
from ..checkpoints.weight_files import weight_files
from ..log import line, log
from .draft import DraftModel

IGNORED_TENSORS = ("embed_tokens.weight", "lm_head.weight")
"""Early uploads carry copies of the target's own; the target's are used."""
OTHER_NAMES = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}
"""Beginnings of names in assistants and in some conversions, and what they stand for."""


def load_draft(folder: Path, config: DraftConfig, dtype: mx.Dtype | None) -> DraftModel:
    """Load a draft's weights, cast to ``dtype`` unless None; nothing is evaluated yet.

    Raises:
        DflashError: load_failed when tensors are missing, left over or of the wrong shape, or
            ``rope_scaling`` is not what its type needs.
    """
    files = weight_files(folder)
    if not files:
        raise DflashError(ErrorCode.load_failed, f"draft {folder} has no *.safetensors file")
    weights: dict[str, mx.array] = {}
    for file in files:
        try:
            weights.update(mx.load(str(file)))  # pyright: ignore[reportArgumentType, reportCallIssue]
        except RuntimeError as error:
            raise DflashError(ErrorCode.load_failed, f"{file} cannot be read: {error}") from None
    ignored = [name for name in IGNORED_TENSORS if weights.pop(name, None) is not None]
    if ignored:
        reason = "the target has its own"
        log.warning(
            line("draft_tensors_ignored", draft=folder, tensors=",".join(ignored), reason=reason)
        )
    weights = _renamed(weights, folder)
    model = _empty_model(config, folder)
    _quantise(model, config, weights)
    _check_tensors(dict(tree_flatten(model.parameters())), weights, folder)
    model.load_weights(list(weights.items()))
    if dtype is not None:
        # Scales first: dequantising in their float16 would round every weight once more.
        model.set_dtype(mx.float32)
        dequantize_model(model)
        model.set_dtype(dtype)
    model.eval()
    return model


def _renamed(weights: dict[str, mx.array], folder: Path) -> dict[str, mx.array]:
    """Tensors under the names this module uses; see :data:`OTHER_NAMES`."""
    renamed: dict[str, mx.array] = {}
    for name, array in weights.items():
        other = name
        for theirs, ours in OTHER_NAMES.items():
            if name.startswith(theirs):
                other = ours + name.removeprefix(theirs)
        if other in renamed or (other != name and other in weights):
            raise DflashError(
                ErrorCode.load_failed, f"draft {folder}: tensor {other} is there under two names"
            )
        renamed[other] = array
    return renamed


def _quantise(model: DraftModel, config: DraftConfig, weights: dict[str, mx.array]) -> None:
    """Give ``model`` quantised layers where ``weights`` has packed ones."""
    if config.quantization is None:
        return
    default = {
        key: config.quantization[key]
        for key in ("group_size", "bits", "mode")
        if key in config.quantization
    }

    def settings(path: str, _: nn.Module) -> bool | dict[str, Any]:
        if f"{path}.scales" not in weights:
            return False
        own: Any = (config.quantization or {}).get(path)
        return own if isinstance(own, dict) else default

    nn.quantize(model, default["group_size"], default["bits"], class_predicate=settings)


def _empty_model(config: DraftConfig, folder: Path) -> DraftModel:
    try:
        return DraftModel(config)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        # Only the rotation is made from values that draft_config.py hands on unread.
        raise DflashError(
            ErrorCode.load_failed,
            f"draft {folder}: rope_scaling {shown(config.rope_scaling)} is not usable: "
            f"{type(error).__name__} {shown(str(error))}",
        ) from None


def _check_tensors(expected: dict[str, Any], found: dict[str, mx.array], folder: Path) -> None:
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            problem = f"tensor {name} is missing"
        elif name not in expected:
            problem = f"tensor {name} is not part of a DFlash draft"
        elif expected[name].shape != found[name].shape:
            problem = (
                f"tensor {name} has shape {found[name].shape}, "
                f"config.json asks for {expected[name].shape}"
            )
        else:
            continue
        raise DflashError(ErrorCode.load_failed, f"draft {folder}: {problem}")
