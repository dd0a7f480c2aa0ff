"""What a draft says of its target, what a target is, and whether they fit. Pure.

From ``config.json`` alone, as ``worker/checkpoints/draft_config.py`` reads it: the worker has the
last word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from ..inspection.states import text_config, whole

DRAFTS = frozenset({"DFlashDraftModel", "DFlash2DraftModel", "MuseGlimmerAssistantModel"})
OTHER_DRAFTS = {"DFlashLaguna": "Laguna", "DSpark": "DSpark", "Domino": "Domino"}
"""Marks in the architecture's name of drafts that the engine cannot run."""

GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
CONVERSIONS = re.compile(r"-(?:mlx|[2-8]-?bit|bf16|fp16|mxfp[48]|nvfp4|dwq|q[2-8]|g\d+)\b.*$")
"""What a conversion adds to a model's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """A target as far as a draft depends on it; 0: its configuration does not say."""

    hidden_size: int
    vocab_size: int
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """What a draft was made for; 0: it does not say."""

    hidden_size: int
    vocab_size: int
    target_layers: int
    deepest_layer: int


def is_draft(config: Mapping[str, object]) -> bool:
    """Whether this is a draft of any kind: never a model of its own."""
    return "dflash_config" in config or any(
        name in DRAFTS or other_kind(name) for name in architectures(config)
    )


def cannot_run(config: Mapping[str, object]) -> str:
    """Why this is neither a target nor a draft of ours; "" if it is one."""
    names = architectures(config)
    if kind := "".join(other_kind(name) for name in names):
        return f"a {kind} draft, which the engine cannot run"
    if is_draft(config):
        if config.get("quantization_config") and not config.get("quantization"):
            return "a draft that is quantised for other software"
        return "" if DRAFTS & set(names) else "not a DFlash draft of a kind we know"
    if not any(name.endswith(GENERATES) for name in names):
        return f"no text model ({', '.join(names) or 'it names no architecture'})"
    return ""


def target_shape(config: Mapping[str, object]) -> TargetShape:
    """Of a target."""
    text = text_config(config)
    return TargetShape(
        hidden_size=whole(text, "hidden_size"),
        vocab_size=whole(text, "vocab_size") or whole(config, "vocab_size"),
        layers=whole(text, "num_hidden_layers"),
    )


def draft_shape(config: Mapping[str, object]) -> DraftShape:
    """Of a draft. What stands in its ``dflash_config`` goes before what stands above it."""
    inner = config.get("dflash_config")
    both = dict(config)
    if isinstance(inner, dict):
        both |= cast("dict[str, object]", inner)
    ids = both.get("target_layer_ids")
    listed = cast("list[object]", ids) if isinstance(ids, list) else []
    return DraftShape(
        hidden_size=whole(config, "hidden_size"),
        vocab_size=whole(config, "vocab_size"),
        target_layers=whole(both, "num_target_layers"),
        deepest_layer=max((id for id in listed if type(id) is int), default=0),
    )


def misfit(draft: DraftShape, target: TargetShape) -> str:
    """The first thing that keeps them from working together, or ""."""
    for what, wanted, found in (
        ("hidden size", draft.hidden_size, target.hidden_size),
        ("vocabulary", draft.vocab_size, target.vocab_size),
        ("number of layers", draft.target_layers, target.layers),
    ):
        if wanted not in (0, found):
            return f"made for {what} {wanted}, the target has {found}"
    if draft.deepest_layer >= target.layers:
        return f"reads layer {draft.deepest_layer}, the target has {target.layers}"
    return ""


def base_name(spec: str) -> str:
    """A model's own name: without owner, revision, and what a conversion or a draft adds."""
    name = spec.rpartition("/")[2].partition("@")[0].lower()
    return CONVERSIONS.sub("", name.partition("-dflash")[0])


def architectures(config: Mapping[str, object]) -> list[str]:
    """The names of the classes a checkpoint is for."""
    names = config.get("architectures")
    if not isinstance(names, list):
        return []
    return [name for name in cast("list[object]", names) if isinstance(name, str)]


def other_kind(architecture: str) -> str:
    """The kind of a draft that we cannot run, or ""."""
    return next((kind for mark, kind in OTHER_DRAFTS.items() if mark in architecture), "")
