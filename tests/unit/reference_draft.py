"""The DFlash draft network in plain numpy and float64, written from its description alone."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from dflashd.worker.checkpoints.draft_config import DraftConfig

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
        if config.conv_kernel_size:
            taps, groups = config.conv_kernel_size, hidden // config.conv_group_size
            for name in ("attention_conv", "mlp_conv"):
                weights |= {
                    f"{at}.{name}.base_kernel": random.normal(0, 0.7, (2, taps, hidden)),
                    f"{at}.{name}.kernel_projection.weight": matrix(2 * taps * groups, hidden),
                }
    if config.selector_rank:
        rank = config.selector_rank
        weights |= {
            "candidate_selector.hidden_projection.weight": matrix(rank, hidden),
            "candidate_selector.predecessor_codebook": matrix(config.vocab_size, rank),
            "candidate_selector.successor_codebook": matrix(config.vocab_size, rank),
        }
    return weights


def draft_rows(config: DraftConfig, weights: Weights, block: Array, features: Array) -> Array:
    """Normed hidden rows [bs, H] of ``block`` [bs, H] behind ``features`` [L, F] of all before."""
    context = _rms(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], config)
    x = block
    for layer in range(config.num_hidden_layers):
        own = _under(weights, f"layers.{layer}.")
        normed = _rms(x, own["input_layernorm.weight"], config)
        rows = _convolve(config, _under(own, "attention_conv."), normed, normed, 0)
        rows = _attend(config, layer, _under(own, "self_attn."), rows, context)
        x = x + _convolve(config, _under(own, "attention_conv."), normed, rows, 1)
        normed = _rms(x, own["post_attention_layernorm.weight"], config)
        rows = _convolve(config, _under(own, "mlp_conv."), normed, normed, 0)
        gate = rows @ own["mlp.gate_proj.weight"].T
        up = rows @ own["mlp.up_proj.weight"].T
        rows = (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
        x = x + _convolve(config, _under(own, "mlp_conv."), normed, rows, 1)
    return _rms(x, weights["norm.weight"], config)


def select(
    config: DraftConfig, weights: Weights, anchor: int, hidden: Array, logits: Array
) -> list[int]:
    """The greedy walk from ``anchor`` over normed rows [n, H] and their logits [n, V]."""
    own = _under(weights, "candidate_selector.")
    path = [anchor]
    for row, unary in zip(hidden, logits, strict=True):
        best = np.argsort(-unary)[: config.selector_top_k]
        link = own["predecessor_codebook"][path[-1]] * (own["hidden_projection.weight"] @ row)
        scores = [unary[token] + link @ own["successor_codebook"][token] for token in best]
        path.append(int(best[int(np.argmax(scores))]))
    return path[1:]


def _convolve(
    config: DraftConfig, weights: Weights, normed: Array, rows: Array, side: int
) -> Array:
    """Each channel of each row: the taps of its own row's kernel on that row and those before."""
    if not config.conv_kernel_size:
        return rows
    taps, group = config.conv_kernel_size, config.conv_group_size
    output = np.zeros_like(rows)
    for at in range(len(rows)):
        dynamic = (weights["kernel_projection.weight"] @ normed[at]).reshape(2, taps, -1)
        for tap in range(min(taps, at + 1)):
            for channel in range(rows.shape[1]):
                kernel = weights["base_kernel"][side, tap, channel]
                kernel += dynamic[side, tap, channel // group]
                output[at, channel] += kernel * rows[at - tap, channel]
    return output


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
