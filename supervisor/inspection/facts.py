"""From files to :class:`ModelFacts`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

import msgspec

from ...protocol.messages import LoadBody
from ..core.facts import ModelFacts, Weights, counted_context
from .places import folder_of
from .states import draft_states, layer_kinds, target_states, text_config, whole
from .tensors import Tensor, dense_sizes, float_bytes, kept_bytes, read_tensors

FLOAT32_HEADROOM = 1.25  # as the worker's weights.py has it: what a float32 copy must leave
T = TypeVar("T")

STORED_DTYPE = "keep"
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
ON_CPU = sys.platform != "darwin"
"""mlx computes on the CPU here, where the worker turns ``dtype = "auto"`` into float32."""

LEFT_OUT = frozenset(
    {
        *("audio_tower", "embed_audio", "embed_vision", "mm_projector", "mtp"),
        *("multi_modal_projector", "vision_adapter", "vision_embedder", "vision_model"),
        *("vision_projection", "vision_tower", "visual"),
    }
)
"""Parts of multimodal and self-drafting checkpoints that a text model does not load."""

SHARED_WITH_TARGET = frozenset({"embed_tokens.weight", "lm_head.weight"})
"""Tensors of early drafts that are not loaded: the target's own are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder's configuration and the tensors that are loaded from it."""

    folder: Path
    config: Mapping[str, object]
    tensors: list[Tensor]
    proposed_rows: int = 0
    """How many tokens a draft proposes from, where its folder limits them."""

    def size_bytes(self, dtype: str) -> int:
        """Of its weights in memory."""
        if dtype == STORED_DTYPE:
            return kept_bytes(self.tensors)
        return sum(self._dense) * WIDTHS[dtype]

    def largest_bytes(self, dtype: str) -> int:
        """Of its largest tensor once it is cast; 0 where nothing is."""
        return 0 if dtype == STORED_DTYPE else max(self._dense, default=0) * WIDTHS[dtype]

    def width(self, dtype: str) -> int:
        """Bytes of one value of its keys and values."""
        return WIDTHS.get(dtype) or float_bytes(self.tensors)

    @property
    def _dense(self) -> list[int]:
        return dense_sizes(self.tensors, _quantisation(self.config))


def inspect(
    body: LoadBody, *, concurrency: int, pool_bytes: int, on_cpu: bool = ON_CPU
) -> ModelFacts:
    """What ``body`` names, as its files say. Reads headers only; never raises for a bad file.

    ``concurrency`` is how many requests a worker runs at once. A model whose float32 copy is too
    large for ``pool_bytes`` is reckoned as stored, and its facts' ``dtype`` says so.
    """
    drafted = body.draft is not None and body.block_tokens != 1
    try:
        target = _checkpoint(body.target, "target")
        draft = _checkpoint(body.draft, "draft") if drafted and body.draft else None
    except (OSError, ValueError, RecursionError) as error:
        return ModelFacts(unknown=" ".join(str(error).split()))
    dtype = _dtype(body, [target, *([draft] if draft else [])], pool_bytes, on_cpu=on_cpu)
    parts = [target, *([draft] if draft else [])]
    text = text_config(target.config)
    context = counted_context(body, whole(text, "max_position_embeddings"))
    largest, usual = _request_bytes(body, target, draft, dtype, context)
    return ModelFacts(
        model_type=str(target.config.get("model_type", "")),
        layers=len(layer_kinds(text)),
        dtype=dtype,
        weights=_weights(parts, dtype),
        cast_bytes=max(part.largest_bytes(dtype) for part in parts),
        requests_bytes=largest + (concurrency - 1) * usual,
        cache_bytes=min(largest, body.cache.ram_bytes) if body.cache.enabled else 0,
    )


def _request_bytes(
    body: LoadBody, target: Checkpoint, draft: Checkpoint | None, dtype: str, context: int
) -> tuple[int, int]:
    """Bytes of a request of the whole context, and of one as most are."""
    chunk = body.prefill_chunk_tokens
    states = target_states(target.config)
    drafted = draft_states(draft.config) if draft else None

    def size(tokens: int) -> int:
        total = states.elements(tokens, chunk) * target.width(dtype)
        if draft and drafted:
            total += drafted.elements(tokens, chunk) * draft.width(dtype)
        return total

    return size(context), size(min(context, chunk + body.max_tokens))


def _weights(parts: list[Checkpoint], dtype: str) -> tuple[Weights, ...]:
    """Sizes of target and draft; a draft's also with its copy of the rows it proposes from."""
    target, *drafts = parts
    found = [Weights(key=f"{target.folder}:{dtype}", size_bytes=target.size_bytes(dtype))]
    for draft in drafts:
        rows = draft.proposed_rows * whole(draft.config, "hidden_size")
        size = draft.size_bytes(dtype) + rows * target.width(dtype)
        found.append(Weights(key=f"{draft.folder}:{dtype}", size_bytes=size))
    return tuple(found)


def _dtype(body: LoadBody, parts: list[Checkpoint], pool_bytes: int, *, on_cpu: bool) -> str:
    if body.dtype != "auto":
        return body.dtype
    needed = sum(part.size_bytes("float32") for part in parts) * FLOAT32_HEADROOM
    return "float32" if on_cpu and needed <= pool_bytes else STORED_DTYPE


def _checkpoint(spec: str, kind: Literal["target", "draft"]) -> Checkpoint:
    folder = folder_of(spec, kind)
    if folder is None:
        raise ValueError(f"{kind} {spec} is not on this disk yet")
    config = _decoded(folder / "config.json", dict[str, object])
    tied = config.get("tie_word_embeddings", text_config(config).get("tie_word_embeddings"))
    tensors = [t for t in read_tensors(folder) if _is_loaded(t.name, kind, tied=tied is True)]
    frequent = folder / "frequent_tokens.json"
    rows = len(set(_decoded(frequent, list[int]))) if frequent.exists() and kind == "draft" else 0
    return Checkpoint(folder=folder, config=config, tensors=tensors, proposed_rows=rows)


def _is_loaded(name: str, kind: str, *, tied: bool) -> bool:
    if kind == "draft":
        return name not in SHARED_WITH_TARGET
    parts = name.split(".")
    return LEFT_OUT.isdisjoint(parts) and not (tied and "lm_head" in parts)


def _quantisation(config: Mapping[str, object]) -> Mapping[str, object]:
    found = config.get("quantization") or config.get("quantization_config")
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not what it must be: {error}") from None
