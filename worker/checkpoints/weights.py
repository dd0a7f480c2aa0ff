"""Weights of a module: their size, their dtype, and how they come into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

from ..errand import Progress
from ..log import line, log

DtypeName = Literal["auto", "float32", "bfloat16", "float16", "keep"]
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
FLOAT32_HEADROOM = 1.25
"""Memory a float32 copy must leave for caches, as a factor of its own size."""


def by_layers(module: Any) -> list[Any]:
    """All parameters: a tree for each layer, then one for the rest."""
    layers = [layer.parameters() for layer in module.layers]
    held = {id(array) for array in _arrays(layers)}
    return [*layers, [array for _, array in parameters(module) if id(array) not in held]]


def nbytes(trees: Any) -> int:
    """Size of all arrays in ``trees``."""
    return sum(array.nbytes for array in _arrays(trees))


def parameters(module: nn.Module) -> list[tuple[str, mx.array]]:
    """All parameters with their paths."""
    return tree_flatten(module.parameters())  # pyright: ignore[reportReturnType]


def dtype_name(dtype: mx.Dtype | None) -> str:
    """As people and fingerprints see it."""
    return str(dtype or "as stored").rpartition(".")[2]


def wanted_dtype(name: DtypeName) -> mx.Dtype | None:
    """What a configured dtype means on this device; None: as stored.

    CPUs are several times slower at anything but dense float32, so there ``auto`` means float32
    (where :func:`fits_float32`).
    """
    if name == "keep":
        return None
    if name == "auto":
        return mx.float32 if mx.default_device().type == mx.DeviceType.cpu else None
    return DTYPES[name]


def fits_float32(module: nn.Module, free_bytes: int) -> bool:
    """Whether all weights as dense float32 fit into the memory that is free."""
    packed = 0
    for _, part in module.named_modules():
        if "scales" in part and hasattr(part, "bits"):
            packed += part.weight.size * 32 // part.bits - part.weight.size
    dense = 4 * (packed + sum(array.size for _, array in parameters(module)))
    needed_bytes = int(dense * FLOAT32_HEADROOM)
    if needed_bytes > free_bytes:
        log.warning(line("dtype_kept", needed_bytes=needed_bytes, free_bytes=free_bytes))
    return needed_bytes <= free_bytes


def cast(module: nn.Module, dtype: mx.Dtype) -> None:
    """Make ``module`` compute in ``dtype``, densely; lazily.

    What mlx-lm never casts when it converts (decays, router biases) becomes float32: rounding it
    changes what the model says.
    """
    castable: Callable[[str], bool] = getattr(module, "cast_predicate", lambda _: True)
    # Scales first: dequantising in their float16 would round every weight once more.
    module.set_dtype(mx.float32)
    dequantize_model(module)
    module.load_weights(
        [
            (path, array.astype(dtype))
            for path, array in parameters(module)
            if mx.issubdtype(array.dtype, mx.floating) and castable(path)
        ],
        strict=False,
    )


def evaluate(parts: Sequence[Sequence[Any]], report: Progress) -> None:
    """Bring the arrays of ``parts`` into memory, group by group so that progress shows."""
    groups = [group for part in parts for group in part]
    for done, group in enumerate(groups):
        report("weights", done, len(groups), "layers")
        mx.eval(group)
    report("weights", len(groups), len(groups), "layers")


def _arrays(trees: Any) -> list[mx.array]:
    return [array for _, array in tree_flatten(trees)]  # pyright: ignore[reportReturnType]
