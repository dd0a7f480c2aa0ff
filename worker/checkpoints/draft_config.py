"""DFlash draft checkpoints: what their ``config.json`` says, in every public shape we can run.

The raw JSON is read, never a transformers config class: those drop fields such as
``sliding_window`` (arXiv 2602.06036 describes the network, public checkpoints the shapes).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.errors import DflashError, ErrorCode
from .fields import Fields, shown

SUPPORTED = "DFlashDraftModel, DFlash2DraftModel and MuseGlimmerAssistantModel checkpoints"
VERSION_2 = "DFlash2DraftModel"
ASSISTANT = "MuseGlimmerAssistantModel"
DRAFT_ARCHITECTURES = frozenset({"DFlashDraftModel", VERSION_2, ASSISTANT})
UNSUPPORTED_MARKS = {
    "DFlashLaguna": "a Laguna draft",
    "DSpark": "a DSpark draft",
    "Domino": "a Domino draft",
}
"""What an architecture's name holds if it is a draft of a kind we cannot run: these exist for
several target families, each with a prefix or suffix of its own."""
DEFAULT_ROPE_THETA = 10_000.0
DEFAULT_BLOCK_TOKENS = 16
MOST_DRAFT_LAYERS = 256
MOST_BLOCK_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """The draft network's shape. ``target_layer_ids`` are 0-based layers whose *output* is read.

    ``vocab_size`` and ``num_target_layers`` are 0 where the checkpoint does not tell. Sizes of
    convolutions and selector are 0 where there is none.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    vocab_size: int
    block_tokens: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    output_multiplier: float
    final_logit_softcapping: float
    input_embedding_scale: float
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    quantization: dict[str, Any] | None = None

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def feature_size(self) -> int:
        """Width of one context-feature row before ``fc``."""
        return len(self.target_layer_ids) * self.hidden_size

    def causal_in_block(self, layer: int) -> bool:
        """Sliding layers are causal inside the block unless the checkpoint says otherwise."""
        return self.layer_types[layer] == "sliding_attention" and self.is_causal is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """What a draft must agree with."""

    name: str
    hidden_size: int
    vocab_size: int
    num_layers: int


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's ``config.json``.

    Raises:
        DflashError: not_found when there is none, load_failed when it is not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DflashError(
            ErrorCode.not_found, f"{folder} has no config.json: it is not a model folder"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DflashError(ErrorCode.load_failed, f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DflashError(ErrorCode.load_failed, f"{path} is not a JSON object")
    return config  # pyright: ignore[reportUnknownVariableType]


def is_draft(config: dict[str, Any]) -> bool:
    """Whether this is a draft of any kind, supported or not: never a model of its own."""
    return "dflash_config" in config or any(
        name in DRAFT_ARCHITECTURES or _unsupported_kind(name) for name in _architectures(config)
    )


def draft_config(config: dict[str, Any], where: str) -> DraftConfig:
    """Read the draft's shape from its raw configuration; ``where`` names it in errors.

    Raises:
        DflashError: unsupported for a checkpoint of another kind, load_failed for a broken one.
    """
    _refuse_other_kinds(config, where)
    try:
        return _parse(config)
    except KeyError as error:
        raise DflashError(
            ErrorCode.load_failed, f"draft {where}: config.json lacks {error.args[0]!r}"
        ) from None
    except ValueError as error:
        raise DflashError(
            ErrorCode.load_failed, f"draft {where}: config.json is not usable: {error}"
        ) from None


def check_pair(draft: DraftConfig, target: TargetShape, where: str) -> None:
    """Refuse a draft that was made for another target, naming the first mismatch.

    Raises:
        DflashError: load_failed.
    """
    deepest = max(draft.target_layer_ids)
    mismatches = (
        ("hidden size", draft.hidden_size, target.hidden_size),
        ("vocabulary", draft.vocab_size, target.vocab_size),
        ("number of target layers", draft.num_target_layers, target.num_layers),
    )
    for what, expected, actual in mismatches:
        if expected not in (0, actual):
            raise DflashError(
                ErrorCode.load_failed,
                f"draft {where} does not fit target {target.name}: it was trained for {what} "
                f"{expected}, the target has {actual}; use the draft made for this target",
            )
    if deepest >= target.num_layers:
        raise DflashError(
            ErrorCode.load_failed,
            f"draft {where} reads layer {deepest}, target {target.name} has layers "
            f"0 to {target.num_layers - 1}; use the draft made for this target",
        )
    if draft.mask_token_id >= target.vocab_size:
        raise DflashError(
            ErrorCode.load_failed,
            f"draft {where}: mask_token_id {draft.mask_token_id} is outside the vocabulary of "
            f"{target.name}; use the draft made for this target",
        )


def default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """The layers a checkpoint means when it names none."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_draft_layers - 1)) for i in range(num_draft_layers))


def _architectures(config: dict[str, Any]) -> list[str]:
    names: Any = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _unsupported_kind(architecture: str) -> str | None:
    kinds = (kind for mark, kind in UNSUPPORTED_MARKS.items() if mark in architecture)
    return next(kinds, None)


def _refuse_other_kinds(config: dict[str, Any], where: str) -> None:
    names = _architectures(config)
    for name in names:
        if kind := _unsupported_kind(name):
            raise DflashError(
                ErrorCode.unsupported,
                f"draft {where} is {kind} ({shown(name)}); supported are {SUPPORTED}",
            )
    if "use_swa" in config:
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is a ModelOpt export (it has use_swa); supported are {SUPPORTED}",
        )
    if config.get("quantization_config") and not config.get("quantization"):
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is quantised for other software; supported are {SUPPORTED}, dense or "
            "as mlx-lm quantises",
        )
    if not DRAFT_ARCHITECTURES & set(names):
        kind = names or config.get("model_type") or "nothing known"
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is not a DFlash draft ({shown(kind)}); supported are {SUPPORTED}. "
            "A full model belongs under 'target'",
        )


def _parse(config: dict[str, Any]) -> DraftConfig:
    top = Fields(config)
    nested = Fields(top.section("dflash_config"), config)
    layers = top.whole("num_hidden_layers", most=MOST_DRAFT_LAYERS)
    hidden = top.whole("hidden_size")
    heads = top.whole("num_attention_heads")
    names = _architectures(config)
    assistant = ASSISTANT in names
    ids = nested.wholes("target_layer_ids")
    num_target_layers = nested.whole("num_target_layers", 0 if assistant and ids else None)
    draft = DraftConfig(
        hidden_size=hidden,
        intermediate_size=top.whole("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=top.whole("num_key_value_heads", heads),
        head_dim=top.whole("head_dim", hidden // heads),
        rms_norm_eps=top.number("rms_norm_eps", 1e-6, positive=True),
        rope_theta=_rope_theta(top),
        rope_scaling=_rope_scaling(top),
        max_position_embeddings=top.whole("max_position_embeddings", 32_768),
        vocab_size=top.whole("vocab_size", 0 if assistant else None),
        block_tokens=nested.whole(
            "block_size", DEFAULT_BLOCK_TOKENS, least=2, most=MOST_BLOCK_TOKENS
        ),
        num_target_layers=num_target_layers,
        target_layer_ids=ids or default_target_layer_ids(num_target_layers, layers),
        mask_token_id=nested.whole("mask_token_id", least=0),
        layer_types=top.names("layer_types") or ("full_attention",) * layers,
        sliding_window=top.whole("sliding_window", 0, least=0) or None,
        is_causal=False if assistant else nested.flag("is_causal"),
        output_multiplier=nested.number("output_multiplier", 1.0, positive=True),
        final_logit_softcapping=nested.number("final_logit_softcapping", 0.0),
        input_embedding_scale=nested.number("input_embedding_scale", 1.0, positive=True),
        **_version_2(nested, required=VERSION_2 in names),
        quantization=_quantization(top),
    )
    _check(draft, layers)
    return draft


def _version_2(nested: Fields, *, required: bool) -> dict[str, int]:
    """Sizes of convolutions and selector; an assistant may come without either."""
    default = None if required else 0
    least = 1 if required else 0
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return {name: nested.whole(name, default, least=least) for name in names}


def _quantization(top: Fields) -> dict[str, Any] | None:
    """How mlx-lm quantised the weights: group_size and bits, and exceptions by module path."""
    found = top.section("quantization")
    if not found:
        return None
    fields = Fields(found)
    fields.whole("group_size")
    fields.whole("bits", most=8)
    return found


def _rope_theta(top: Fields) -> float:
    by_precedence = Fields(
        {"rope_theta": top.raw("rope_theta")},
        top.section("rope_parameters"),
        top.section("rope_scaling"),
    )
    return by_precedence.number("rope_theta", DEFAULT_ROPE_THETA, positive=True)


def _rope_scaling(top: Fields) -> dict[str, Any] | None:
    """The scaling without its theta, as mlx-lm's ``initialize_rope`` takes it."""
    raw = top.section("rope_scaling") or top.section("rope_parameters")
    scaling = {key: value for key, value in raw.items() if key != "rope_theta"}
    kind = scaling.get("type") or scaling.get("rope_type") or "default"
    return None if kind == "default" else scaling


def _check(draft: DraftConfig, layers: int) -> None:
    if len(draft.layer_types) != layers:
        raise ValueError(f"{len(draft.layer_types)} layer_types for {layers} layers")
    unknown = set(draft.layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layer type {shown(min(unknown))} is not known")
    if "sliding_attention" in draft.layer_types and draft.sliding_window is None:
        raise ValueError("sliding_attention layers need a sliding_window")
    if draft.num_attention_heads % draft.num_key_value_heads:
        raise ValueError(
            f"{draft.num_attention_heads} heads do not share "
            f"{draft.num_key_value_heads} key-value heads evenly"
        )
    if draft.head_dim < 2 or draft.head_dim % 2:
        raise ValueError(f"head_dim {draft.head_dim} cannot be rotated in halves")
    if min(draft.target_layer_ids) < 0:
        raise ValueError(
            f"{draft.num_target_layers} target layers are too few for the default target_layer_ids"
        )
    if draft.conv_kernel_size and (
        not draft.conv_group_size or draft.hidden_size % draft.conv_group_size
    ):
        raise ValueError(
            f"conv_group_size {draft.conv_group_size} does not divide hidden_size "
            f"{draft.hidden_size}"
        )
    if bool(draft.selector_rank) != bool(draft.selector_top_k):
        raise ValueError("selector_rank and selector_top_k belong together")
    if draft.vocab_size and draft.mask_token_id >= draft.vocab_size:
        raise ValueError(f"mask_token_id {draft.mask_token_id} is outside the vocabulary")
