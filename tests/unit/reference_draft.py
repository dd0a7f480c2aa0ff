"""The DFlash draft network in plain numpy and float64, written from its description alone."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from dflashd.worker.checkpoint import DraftConfig

Array = NDArray[np.float64]
Weights = dict[str, Array]


def random_weights(config: DraftConfig, seed: int) -> Weights:
    """Weights of about unit gain; norms differ from 1 so that a forgotten one shows."""
    random = np.random.default_rng(seed)
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head

    def matrix(rows: int, columns: int) -> Array:
        return random.normal(0, 1.5 * columns**-0.5, (rows, columns))

    def norm(size: int) -> Array:
        return random.uniform(0.5, 1.5, size)

    weights = {
        "fc.weight": matrix(hidden, config.feature_size),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        weights |= {
            f"{at}.input_layernorm.weight": norm(hidden),
            f"{at}.post_attention_layernorm.weight": norm(hidden),
            f"{at}.self_attn.q_proj.weight": matrix(queries, hidden),
            f"{at}.self_attn.k_proj.weight": matrix(keys, hidden),
            f"{at}.self_attn.v_proj.weight": matrix(keys, hidden),
            f"{at}.self_attn.o_proj.weight": matrix(hidden, queries),
            f"{at}.self_attn.q_norm.weight": norm(head),
            f"{at}.self_attn.k_norm.weight": norm(head),
            f"{at}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{at}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{at}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    return weights


def draft_rows(config: DraftConfig, weights: Weights, block: Array, features: Array) -> Array:
    """Normed hidden rows [bs, H] of ``block`` [bs, H] behind ``features`` [L, F] of all before."""
    context = _rms(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], config)
    x = block
    for layer in range(config.num_hidden_layers):
        own = _under(weights, f"layers.{layer}.")
        normed = _rms(x, own["input_layernorm.weight"], config)
        x = x + _attend(config, layer, _under(own, "self_attn."), normed, context)
        normed = _rms(x, own["post_attention_layernorm.weight"], config)
        gate = normed @ own["mlp.gate_proj.weight"].T
        up = normed @ own["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
    return _rms(x, weights["norm.weight"], config)


def _attend(
    config: DraftConfig, layer: int, weights: Weights, block: Array, context: Array
) -> Array:
    rows = np.concatenate([context, block])
    start, length = len(context), len(block)
    positions = np.arange(len(rows))
    queries = _heads(block @ weights["q_proj.weight"].T, config)
    keys = _heads(rows @ weights["k_proj.weight"].T, config)
    values = _heads(rows @ weights["v_proj.weight"].T, config)
    queries = _rotate(_rms(queries, weights["q_norm.weight"], config), positions[start:], config)
    keys = _rotate(_rms(keys, weights["k_norm.weight"], config), positions, config)
    seen = np.array(
        [
            [_sees(config, layer, start, q, k) for k in range(len(rows))]
            for q in range(start, len(rows))
        ]
    )
    group = config.num_attention_heads // config.num_key_value_heads
    output = np.empty((length, config.num_attention_heads, config.head_dim))
    for head in range(config.num_attention_heads):
        scores = queries[:, head] @ keys[:, head // group].T / np.sqrt(config.head_dim)
        scores = np.where(seen, scores, -np.inf)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        output[:, head] = weight @ values[:, head // group]
    return output.reshape(length, -1) @ weights["o_proj.weight"].T


def _sees(config: DraftConfig, layer: int, start: int, query: int, key: int) -> bool:
    if config.layer_types[layer] == "full_attention":
        return True
    assert config.sliding_window is not None
    if query - key >= config.sliding_window:
        return False
    return config.is_causal is False or key < start or key <= query


def _heads(rows: Array, config: DraftConfig) -> Array:
    return rows.reshape(len(rows), -1, config.head_dim)


def _rms(x: Array, weight: Array, config: DraftConfig) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.rms_norm_eps) * weight


def _rotate(x: Array, positions: NDArray[np.int64], config: DraftConfig) -> Array:
    """Half-split rotation of [L, heads, head_dim]."""
    half = config.head_dim // 2
    scale = cast(float, (config.rope_scaling or {}).get("factor", 1.0))
    frequencies = config.rope_theta ** (-np.arange(half) / half)
    angles = (positions[:, None] / scale * frequencies)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        axis=-1,
    )


def _under(weights: Weights, prefix: str) -> Weights:
    return {
        name.removeprefix(prefix): array
        for name, array in weights.items()
        if name.startswith(prefix)
    }
