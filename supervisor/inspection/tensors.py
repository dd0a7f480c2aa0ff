"""Sizes of a model's weights from the headers of its safetensors files; no weight is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from msgspec import DecodeError, Raw, Struct, json

HEADER_LIMIT_BYTES = 100_000_000
"""The format's own bound."""

INDEX = "model.safetensors.index.json"
PACKED = frozenset({"U32", "I32", "U8"})
"""Types that hold several quantised values in each element."""

BYTES_OF = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
DEFAULT_BITS = 4


class Entry(Struct, frozen=True, kw_only=True):
    """A tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Index(Struct, frozen=True, kw_only=True):
    """Which file each tensor is in."""

    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor's name, type and sizes."""

    name: str
    dtype: str
    elements: int
    stored_bytes: int

    @property
    def module(self) -> str:
        """The name without its last part."""
        return self.name.rpartition(".")[0]


def read_tensors(folder: Path) -> list[Tensor]:
    """All tensors of a folder's weight files: the worker's ``weight_files.py`` says which.

    Raises:
        OSError, ValueError: a file is missing, unreadable, or no safetensors file.
    """
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors file")
    missing = _shards(folder) - {file.name for file in files}
    if missing:
        raise ValueError(f"{folder} lacks {min(missing)}")
    return [tensor for file in files for tensor in _header(file)]


def kept_bytes(tensors: list[Tensor]) -> int:
    """Memory of tensors that stay in their stored type (8-bit floats are widened at load)."""
    return sum(t.stored_bytes * (2 if t.dtype.startswith("F8") else 1) for t in tensors)


def dense_sizes(tensors: list[Tensor], quantisation: Mapping[str, object]) -> list[int]:
    """Elements of each tensor once nothing is packed; scales of what was packed are gone."""
    packed = {t.module for t in tensors if t.dtype in PACKED}
    scales = {f"{module}.{leaf}" for module in packed for leaf in ("scales", "biases")}
    bits = _bits(quantisation)
    return [
        t.stored_bytes * 8 // bits(t.module) if t.dtype in PACKED else t.elements
        for t in tensors
        if t.name not in scales
    ]


def float_bytes(tensors: list[Tensor]) -> int:
    """Size of the float type that most stored tensors have: what a model computes in as stored."""
    counts = Counter(t.dtype for t in tensors if t.dtype in BYTES_OF)
    return BYTES_OF[counts.most_common(1)[0][0]] if counts else 2


def _bits(quantisation: Mapping[str, object]) -> Callable[[str], int]:
    """Bits of a packed value by module: mlx-lm's settings name exceptions by path."""

    def bits(module: str) -> int:
        own = quantisation.get(module)
        settings = cast("Mapping[str, object]", own) if isinstance(own, dict) else quantisation
        found = settings.get("bits", quantisation.get("bits"))
        return found if type(found) is int and 1 <= found <= 32 else DEFAULT_BITS

    return bits


def _shards(folder: Path) -> set[str]:
    """The files that an index, where there is one, says the weights consist of."""
    try:
        index = json.decode((folder / INDEX).read_bytes(), type=Index)
    except FileNotFoundError:
        return set()
    except DecodeError as error:
        raise ValueError(f"{folder / INDEX} is no index: {error}") from None
    return set(index.weight_map.values())


def _header(file: Path) -> list[Tensor]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= HEADER_LIMIT_BYTES:
            raise ValueError(f"{file} is no safetensors file")
        text = stream.read(length)
    try:
        fields = json.decode(text, type=dict[str, Raw])
        fields.pop("__metadata__", None)
        return [_tensor(name, json.decode(raw, type=Entry)) for name, raw in fields.items()]
    except DecodeError as error:
        raise ValueError(f"{file} has a damaged header: {error}") from None


def _tensor(name: str, entry: Entry) -> Tensor:
    begin, end = entry.data_offsets
    size = max(0, end - begin)
    return Tensor(name=name, dtype=entry.dtype, elements=math.prod(entry.shape), stored_bytes=size)
