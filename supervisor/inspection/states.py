"""What a request keeps in memory, from a model's ``config.json``: keys, values, recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

CACHE_STEP_TOKENS = 256
"""mlx-lm grows its caches by so many rows at a time."""

ROTATING = frozenset(
    {
        *("cohere2", "exaone4", "gemma3", "gemma3_text", "gemma4", "gemma4_text"),
        *("gemma4_unified", "gpt_oss", "llama", "ministral3", "mistral", "muse_glimmer", "olmo3"),
    }
)
"""Model types whose sliding layers mlx-lm gives a cache of the window's size; others keep all."""

RECURRENT = frozenset({"linear_attention", "conv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Values that one request of some length keeps, by how they grow; in elements, not bytes."""

    per_token: int
    """Elements each token adds for good."""

    per_window_token: int = 0
    """The same for layers that forget what is older than ``window_tokens``."""

    window_tokens: int = 0
    fixed: int = 0
    """Elements of recurrent state, whatever the length."""

    def elements(self, tokens: int, pass_tokens: int) -> int:
        """Of a request of ``tokens``, computed in passes of ``pass_tokens``."""
        whole = _stepped(tokens)
        # A pass's own rows stand behind a whole window until the next one.
        windowed = min(whole, self.window_tokens + pass_tokens)
        return self.per_token * whole + self.per_window_token * windowed + self.fixed


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The text model's fields, which multimodal models keep one level down."""
    inner = config.get("text_config")
    return cast("Mapping[str, object]", inner) if isinstance(inner, dict) else config


def whole(fields: Mapping[str, object], key: str) -> int:
    """A count; 0 where it is absent or no count: the worker refuses what it cannot use."""
    value = fields.get(key)
    return value if type(value) is int and value > 0 else 0


def target_states(config: Mapping[str, object]) -> States:
    """Of a target. What a configuration leaves out counts as plain attention: the upper bound."""
    text = text_config(config)
    if rank := whole(text, "kv_lora_rank"):
        row = rank + whole(text, "qk_rope_head_dim")
        return States(per_token=row * whole(text, "num_hidden_layers"))
    window = whole(text, "sliding_window") if str(config.get("model_type")) in ROTATING else 0
    grown, windowed, recurrent = 0, 0, 0
    for kind in _kept_kinds(text):
        if kind in RECURRENT:
            recurrent += _recurrent(text, kind)
        elif kind == "sliding_attention" and window:
            windowed += _row(text)
        else:
            grown += max(_row(text), _global_row(text))
    return States(per_token=grown, per_window_token=windowed, window_tokens=window, fixed=recurrent)


def draft_states(config: Mapping[str, object]) -> States:
    """Of a draft: the keys and values of its context, in plain caches, window or not."""
    return States(per_token=_row(config) * whole(config, "num_hidden_layers"))


def layer_kinds(text: Mapping[str, object]) -> tuple[str, ...]:
    """``full_attention``, ``sliding_attention``, ``linear_attention`` or ``conv`` by layer."""
    layers = whole(text, "num_hidden_layers")
    named = text.get("layer_types")
    if isinstance(named, list) and named:
        return tuple(str(kind) for kind in cast("list[object]", named))
    if whole(text, "linear_num_value_heads"):
        return _every(layers, whole(text, "full_attention_interval") or 4, "linear_attention")
    if pattern := whole(text, "sliding_window_pattern"):
        return _every(layers, pattern, "sliding_attention")
    return ("full_attention",) * layers


def _every(layers: int, interval: int, between: str) -> tuple[str, ...]:
    """Full attention in each ``interval``-th layer, ``between`` in the others."""
    return tuple("full_attention" if n % interval == 0 else between for n in range(1, layers + 1))


def _kept_kinds(text: Mapping[str, object]) -> tuple[str, ...]:
    """The layers with a cache of their own: the last ones may share another's."""
    kinds = layer_kinds(text)
    return kinds[: len(kinds) - min(len(kinds), whole(text, "num_kv_shared_layers"))]


def _row(text: Mapping[str, object]) -> int:
    """Elements of one token's keys and values in one layer."""
    heads = whole(text, "num_attention_heads")
    head_dim = whole(text, "head_dim") or whole(text, "hidden_size") // max(1, heads)
    return 2 * (whole(text, "num_key_value_heads") or heads) * head_dim


def _global_row(text: Mapping[str, object]) -> int:
    """The same where full layers have heads of another size or number; 0: they have not."""
    head_dim = whole(text, "global_head_dim")
    heads = whole(text, "num_global_key_value_heads") or whole(text, "num_key_value_heads")
    return 2 * heads * head_dim


def _recurrent(text: Mapping[str, object], kind: str) -> int:
    """Elements of one recurrent layer's state."""
    if kind == "conv":
        return whole(text, "hidden_size") * max(0, whole(text, "conv_L_cache") - 1)
    key_heads, key_dim = whole(text, "linear_num_key_heads"), whole(text, "linear_key_head_dim")
    heads, dim = whole(text, "linear_num_value_heads"), whole(text, "linear_value_head_dim")
    rows = max(0, whole(text, "linear_conv_kernel_dim") - 1)
    return rows * (2 * key_heads * key_dim + heads * dim) + heads * dim * key_dim


def _stepped(tokens: int) -> int:
    return -(-tokens // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS
