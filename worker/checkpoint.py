"""DFlash draft checkpoints: what their ``config.json`` says, in every public shape we can run.

The raw JSON is read, never a transformers config class: those drop fields such as
``sliding_window`` (arXiv 2602.06036 describes the network, public checkpoints the shapes).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol.errors import DflashError, ErrorCode

SUPPORTED = "DFlashDraftModel checkpoints: flat, flat with sliding layers, and nested"
DRAFT_ARCHITECTURES = frozenset({"DFlashDraftModel"})
KNOWN_BUT_UNSUPPORTED = {
    "DFlash2DraftModel": "a DFlash2 draft with convolutions and a candidate selector",
    "MuseGlimmerAssistantModel": "a Muse-Glimmer assistant draft",
    "DFlashLagunaForCausalLM": "a Laguna draft",
    "DSparkDraftModel": "a DSpark draft",
    "DominoDraftModel": "a Domino draft",
}
DEFAULT_ROPE_THETA = 10_000.0
DEFAULT_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """The draft network's shape. ``target_layer_ids`` are 0-based layers whose *output* is read."""

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
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise DflashError(
            ErrorCode.not_found, f"{folder} has no config.json: it is not a model folder"
        ) from None
    except (OSError, ValueError) as error:
        raise DflashError(ErrorCode.load_failed, f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DflashError(ErrorCode.load_failed, f"{path} is not a JSON object")
    return config  # pyright: ignore[reportUnknownVariableType]


def is_draft(config: dict[str, Any]) -> bool:
    """Whether this is a draft of any kind, supported or not: never a model of its own."""
    names = set(_architectures(config))
    return bool(names & (DRAFT_ARCHITECTURES | KNOWN_BUT_UNSUPPORTED.keys())) or (
        "dflash_config" in config
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
    except (TypeError, ValueError) as error:
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
        if expected != actual:
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


def default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """The layers a checkpoint means when it names none."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_draft_layers - 1)) for i in range(num_draft_layers))


def _architectures(config: dict[str, Any]) -> list[str]:
    names = config.get("architectures") or []
    return [name for name in names if isinstance(name, str)]


def _refuse_other_kinds(config: dict[str, Any], where: str) -> None:
    names = _architectures(config)
    for name in names:
        if name in KNOWN_BUT_UNSUPPORTED:
            raise DflashError(
                ErrorCode.unsupported,
                f"draft {where} is {KNOWN_BUT_UNSUPPORTED[name]} ({name}); "
                f"supported are {SUPPORTED}",
            )
    if "use_swa" in config or "quantization" in config or "quantization_config" in config:
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is a quantised export; supported are unquantised {SUPPORTED}",
        )
    if not DRAFT_ARCHITECTURES & set(names):
        kind = ", ".join(names) or config.get("model_type", "nothing known")
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is not a DFlash draft ({kind}); supported are {SUPPORTED}. "
            "A full model belongs under 'target'",
        )


def _parse(config: dict[str, Any]) -> DraftConfig:
    dflash: dict[str, Any] = config.get("dflash_config") or {}

    def nested(key: str, default: Any = None) -> Any:
        return dflash[key] if dflash.get(key) is not None else config.get(key, default)

    layers = int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    num_target_layers = int(nested("num_target_layers") or _missing("num_target_layers"))
    ids = nested("target_layer_ids") or default_target_layer_ids(num_target_layers, layers)
    mask = nested("mask_token_id")
    draft = DraftConfig(
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(config),
        rope_scaling=_rope_scaling(config),
        max_position_embeddings=int(config.get("max_position_embeddings") or 32_768),
        vocab_size=int(config["vocab_size"]),
        block_tokens=int(nested("block_size", DEFAULT_BLOCK_TOKENS)),
        num_target_layers=num_target_layers,
        target_layer_ids=tuple(int(i) for i in ids),
        mask_token_id=int(mask if mask is not None else _missing("mask_token_id")),
        layer_types=tuple(config.get("layer_types") or ["full_attention"] * layers),
        sliding_window=_sliding_window(config),
        is_causal=nested("is_causal"),
        output_multiplier=float(nested("output_multiplier") or 1.0),
        final_logit_softcapping=float(nested("final_logit_softcapping") or 0.0),
        input_embedding_scale=float(nested("input_embedding_scale") or 1.0),
    )
    _check(draft, layers)
    return draft


def _missing(key: str) -> Any:
    raise KeyError(key)


def _rope_theta(config: dict[str, Any]) -> float:
    candidates = (
        config.get("rope_theta"),
        (config.get("rope_parameters") or {}).get("rope_theta"),
        (config.get("rope_scaling") or {}).get("rope_theta"),
    )
    return float(next((theta for theta in candidates if theta is not None), DEFAULT_ROPE_THETA))


def _rope_scaling(config: dict[str, Any]) -> dict[str, Any] | None:
    raw: dict[str, Any] = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaling = {key: value for key, value in raw.items() if key != "rope_theta"}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return None if kind == "default" else scaling


def _sliding_window(config: dict[str, Any]) -> int | None:
    window = config.get("sliding_window")
    return int(window) if window else None


def _check(draft: DraftConfig, layers: int) -> None:
    if len(draft.layer_types) != layers:
        raise ValueError(f"{len(draft.layer_types)} layer_types for {layers} layers")
    unknown = set(draft.layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layer type {min(unknown)!r} is not known")
    if "sliding_attention" in draft.layer_types and draft.sliding_window is None:
        raise ValueError("sliding_attention layers need a sliding_window")
    if draft.block_tokens < 2:
        raise ValueError(f"block_size {draft.block_tokens} leaves nothing to draft")
    if not draft.target_layer_ids or min(draft.target_layer_ids) < 0:
        raise ValueError(f"target_layer_ids {list(draft.target_layer_ids)} is not usable")
    if not 0 <= draft.mask_token_id < draft.vocab_size:
        raise ValueError(f"mask_token_id {draft.mask_token_id} is outside the vocabulary")
