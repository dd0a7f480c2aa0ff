"""DFlash draft checkpoints: what their ``config.json`` says, in every public shape we can run.

The raw JSON is read, never a transformers config class: those drop fields such as
``sliding_window`` (arXiv 2602.06036 describes the network, public checkpoints the shapes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.errors import DflashError, ErrorCode
from .draft_kinds import ASSISTANT, VERSION_2, architectures, refuse_other_kinds
from .fields import Fields, shown

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


def draft_config(config: dict[str, Any], where: str) -> DraftConfig:
    """Read the draft's shape from its raw configuration; ``where`` names it in errors.

    Raises:
        DflashError: unsupported for a checkpoint of another kind, load_failed for a broken one.
    """
    refuse_other_kinds(config, where)
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


def default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """The layers a checkpoint means when it names none."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + i * span / (num_draft_layers - 1)) for i in range(num_draft_layers))


def _parse(config: dict[str, Any]) -> DraftConfig:
    top = Fields(config)
    nested = Fields(top.section("dflash_config"), config)
    layers = top.whole("num_hidden_layers", most=MOST_DRAFT_LAYERS)
    hidden = top.whole("hidden_size")
    heads = top.whole("num_attention_heads")
    names = architectures(config)
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
