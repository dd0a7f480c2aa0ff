"""What mlx-lm looks like: to be compared before and after."""

from __future__ import annotations

import sys
from typing import Any

import mlx.nn as nn

Members = dict[tuple[str, str], Any]


def everything() -> Members:
    """Each global of each mlx-lm and mlx.nn module, and each member of each class there."""
    found: Members = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(("mlx_lm.", "mlx.nn")):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {(f"{name}.{key}", part): what for part, what in vars(value).items()}
    return found


def changed(before: Members, after: Members) -> list[tuple[str, str]]:
    """What is not the very same object any more."""
    return [k for k in before.keys() | after.keys() if before.get(k) is not after.get(k)]


def code_paths(module: nn.Module) -> list[tuple[type, Any]]:
    """The class of each part of a model, and the code that a call of it runs."""
    return [(type(part), type(part).__call__.__code__) for part in module.modules()]  # pyright: ignore[reportUnknownVariableType]
