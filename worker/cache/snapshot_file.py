"""One snapshot as one safetensors file: its bytes, and what is checked when it is read back.

The tokens come first, so that a directory can be indexed without reading states. A checksum over
the header's tensor table and all data tells a damaged file from a sound one.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx
import numpy as np

from .layer_state import LayerState
from .prefixes import Candidate
from .snapshot import Snapshot

MARK = "dflashd prefix snapshot 1"
SUFFIX = ".safetensors"
HEADER_LIMIT_BYTES = 16 * 2**20

_DTYPES: dict[mx.Dtype, tuple[str, str, mx.Dtype]] = {
    mx.float32: ("F32", "<f4", mx.float32),
    mx.float16: ("F16", "<f2", mx.float16),
    # numpy has no bfloat16: its bits travel as 16-bit integers.
    mx.bfloat16: ("BF16", "<u2", mx.uint16),
    mx.uint32: ("U32", "<u4", mx.uint32),
    mx.int32: ("I32", "<i4", mx.int32),
    mx.uint8: ("U8", "|u1", mx.uint8),
}
"""Of each storable dtype: its safetensors name, its numpy form, and what numpy sees it as."""
_BY_NAME = {name: (form, dtype) for dtype, (name, form, _) in _DTYPES.items()}


class BadFile(Exception):
    """A file in the cache directory is damaged, cut short or not ours: remove it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A snapshot ready to be written by any thread: a name and the file's tensors as buffers.

    ``replaces``: keys of files that are of no use once it is written.
    """

    key: str
    replaces: frozenset[str]
    metadata: dict[str, str]
    tensors: tuple[tuple[str, str, tuple[int, ...], memoryview], ...]

    @property
    def nbytes(self) -> int:
        """Size of the data; the header comes on top."""
        return sum(buffer.nbytes for *_, buffer in self.tensors)


def payload(snapshot: Snapshot, stamp: str, replaces: frozenset[str] = frozenset()) -> Payload:
    """The buffers of an evaluated snapshot, not copied. On the thread that owns the arrays.

    ``stamp`` is the namespace the file belongs to. Raises TypeError for a dtype that has no form.
    """
    named: list[tuple[str, mx.array]] = []
    layout = {
        "target": [_layout(layer, f"t{n}", named) for n, layer in enumerate(snapshot.target)],
        "draft": None
        if snapshot.draft is None
        else [_layout(layer, f"d{n}", named) for n, layer in enumerate(snapshot.draft)],
        "logits": sorted(snapshot.logits),
        "aligned_tokens": snapshot.aligned_tokens,
        "trimmable": snapshot.trimmable,
    }
    named += [(f"logits{length}", snapshot.logits[length]) for length in sorted(snapshot.logits)]
    for _, array in named:
        if array.dtype not in _DTYPES:
            raise TypeError(f"{array.dtype} cannot be stored")
    views = [array.view(_DTYPES[array.dtype][2]) for _, array in named]
    mx.eval(views)
    tokens = np.ascontiguousarray(snapshot.tokens, "<i4").data.cast("B")
    tensors = [("tokens", "I32", tuple(snapshot.tokens.shape), tokens)]
    for (name, array), view in zip(named, views, strict=True):
        buffer = np.array(view, copy=False).data.cast("B") if view.size else memoryview(b"")
        tensors.append((name, _DTYPES[array.dtype][0], tuple(array.shape), buffer))
    metadata = {"mark": MARK, "stamp": stamp, "layout": json.dumps(layout)}
    return Payload(key=snapshot.key, replaces=replaces, metadata=metadata, tensors=tuple(tensors))


def write(file: BinaryIO, data: Payload) -> None:
    """Write the whole file. Raises OSError."""
    table = _table(data.tensors)
    check = zlib.crc32(_canonical(table, data.metadata))
    for *_, buffer in data.tensors:
        check = zlib.crc32(buffer, check)
    header: dict[str, Any] = {"__metadata__": {**data.metadata, "crc32": f"{check:08x}"}, **table}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for *_, buffer in data.tensors:
        file.write(buffer)


def peek(path: Path, stamp: str) -> tuple[Candidate, int]:
    """What choosing needs of a file, and its size; states are not read.

    Raises BadFile; OSError if it cannot be read at all.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header, begin = _header(file, size_bytes, stamp)
        tokens = _tensor(header["tokens"], file.read(header["tokens"]["data_offsets"][1]), 0)
    layout = _layout_of(header)
    return _candidate(path, tokens.astype(np.int32), layout), size_bytes - begin


def read(path: Path, key: str, stamp: str) -> Snapshot:
    """The whole snapshot ``key``, checked. Raises BadFile, OSError."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header, _ = _header(file, size_bytes, stamp)
        data = file.read()
    metadata: dict[str, str] = header.pop("__metadata__")
    check = metadata.pop("crc32", "")
    if f"{zlib.crc32(data, zlib.crc32(_canonical(header, metadata))):08x}" != check:
        raise BadFile("its checksum does not fit its content")
    layout = json.loads(metadata["layout"])
    try:
        snapshot = _snapshot(header, data, layout)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadFile(f"its layout is not readable: {error!r}") from error
    if snapshot.key != key:
        raise BadFile("it is not what its name says")
    return snapshot


def _snapshot(header: dict[str, Any], data: bytes, layout: dict[str, Any]) -> Snapshot:
    def array(name: str) -> mx.array:
        dtype = _BY_NAME[header[name]["dtype"]][1]
        loaded = mx.array(_tensor(header[name], data, header[name]["data_offsets"][0]))
        return loaded.view(dtype) if loaded.dtype != dtype else loaded

    def layer(entry: dict[str, Any]) -> LayerState:
        return LayerState(
            kind=entry["kind"],
            numbers=tuple(entry["numbers"]),
            arrays=tuple(None if name is None else array(name) for name in entry["arrays"]),
            trimmable=entry["trimmable"],
            rows=entry["rows"],
            parts=tuple(layer(part) for part in entry["parts"]),
        )

    tokens = _tensor(header["tokens"], data, header["tokens"]["data_offsets"][0])
    draft = layout["draft"]
    return Snapshot(
        tokens=tokens.astype(np.int32),
        target=tuple(layer(entry) for entry in layout["target"]),
        draft=None if draft is None else tuple(layer(entry) for entry in draft),
        logits={length: array(f"logits{length}") for length in layout["logits"]},
        aligned_tokens=layout["aligned_tokens"],
    )


def _layout(layer: LayerState, name: str, named: list[tuple[str, mx.array]]) -> dict[str, Any]:
    names: list[str | None] = []
    for n, array in enumerate(layer.arrays):
        names.append(None if array is None else f"{name}.{n}")
        if array is not None:
            named.append((f"{name}.{n}", array))
    return {
        "kind": layer.kind,
        "numbers": layer.numbers,
        "arrays": names,
        "trimmable": layer.trimmable,
        "rows": layer.rows,
        "parts": [_layout(part, f"{name}.p{n}", named) for n, part in enumerate(layer.parts)],
    }


def _table(tensors: tuple[tuple[str, str, tuple[int, ...], memoryview], ...]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape, buffer in tensors:
        offsets = [offset, offset + buffer.nbytes]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        offset += buffer.nbytes
    return table


def _canonical(table: dict[str, Any], metadata: dict[str, str]) -> bytes:
    return json.dumps([table, metadata], sort_keys=True).encode()


def _header(file: BinaryIO, size_bytes: int, stamp: str) -> tuple[dict[str, Any], int]:
    """The header of a file that is ours and whole, and where its data begin."""
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 0 < length <= min(HEADER_LIMIT_BYTES, size_bytes):
        raise BadFile("it is no safetensors file")
    try:
        header: dict[str, Any] = json.loads(file.read(length))
        metadata = header["__metadata__"]
        ours = metadata["mark"] == MARK and metadata["stamp"] == stamp
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end: int = max(entry["data_offsets"][1] for entry in tensors)
        sound = "tokens" in header and header["tokens"]["data_offsets"][0] == 0
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadFile("its header is not readable") from error
    if not ours:
        raise BadFile("it was not written for this cache")
    if not sound or size_bytes != 8 + length + end:
        raise BadFile("it is cut short")
    return header, 8 + length


def _layout_of(header: dict[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(header["__metadata__"]["layout"])
    except (ValueError, KeyError) as error:
        raise BadFile("its layout is not readable") from error


def _tensor(entry: dict[str, Any], data: bytes, begin: int) -> np.ndarray[Any, Any]:
    try:
        shape, (start, end) = entry["shape"], entry["data_offsets"]
        form = np.dtype(_BY_NAME[entry["dtype"]][0])
        flat = np.frombuffer(data, form, (end - start) // form.itemsize, begin)
        return flat.reshape(shape)
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"a tensor is not readable: {error!r}") from error


def _candidate(path: Path, tokens: np.ndarray[Any, Any], layout: dict[str, Any]) -> Candidate:
    try:
        return Candidate(
            key=path.name.removesuffix(SUFFIX),
            tokens=tokens,
            trimmable=bool(layout["trimmable"]),
            has_draft=layout["draft"] is not None,
            aligned_tokens=int(layout["aligned_tokens"]),
            logits_at=frozenset(layout["logits"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile("its layout is not readable") from error
