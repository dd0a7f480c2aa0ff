"""Which files of a folder hold the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The folder's weight files, in a fixed order: those that mlx-lm reads, where there are some.

    Some models come a second time, in their makers' own format (``consolidated.safetensors``).
    """
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))


def has_all_weights(folder: Path) -> bool:
    """Whether there are weights, and all that the index names, where there is one."""
    try:
        index: Any = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        named = set(index["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        named = set[str]()  # no index, or none that tells: loading will judge
    present = {file.name for file in weight_files(folder)}
    return bool(present) and named <= present
