"""The DFlash draft network (arXiv 2602.06036); what only version 2 has is in ``dflash2.py``.

A few pre-norm decoder layers that attend from a block of mask tokens to *context features* of the
target and to the block itself. Embedding and LM head are the target's and are not held here.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.models.rope_utils import initialize_rope

from ..checkpoints.draft_config import DraftConfig
from .dflash2 import BlockConvolution, CandidateSelector


class DraftAttention(nn.Module):
    """Queries from the block; keys and values from context features, then the block."""

    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.n_heads = config.num_attention_heads
        self.n_kv_heads = config.num_key_value_heads
        self.scale = head_dim**-0.5
        self.causal = config.causal_in_block(layer)
        sliding = config.layer_types[layer] == "sliding_attention"
        self.window = config.sliding_window if sliding else None
        self.q_proj = nn.Linear(hidden, self.n_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.n_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.n_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * head_dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.rope = initialize_rope(
            head_dim,
            base=config.rope_theta,
            traditional=False,
            scaling_config=config.rope_scaling,
            max_position_embeddings=config.max_position_embeddings,
        )

    def extend(self, rows: mx.array, cache: KVCache) -> tuple[mx.array, mx.array]:
        """Append K/V of ``rows`` [B, L, H] at the cache's end; return all keys and values."""
        batch, length, _ = rows.shape
        shape = (batch, length, self.n_kv_heads, -1)
        keys = self.k_norm(self.k_proj(rows).reshape(shape)).transpose(0, 2, 1, 3)
        values = self.v_proj(rows).reshape(shape).transpose(0, 2, 1, 3)
        keys = self.rope(keys, offset=cache.offset)
        return cache.update_and_fetch(keys, values)  # pyright: ignore[reportReturnType]

    def __call__(self, block: mx.array, context: mx.array | None, cache: KVCache) -> mx.array:
        """Attend from ``block`` [B, bs, H]; only ``context`` rows stay in the cache."""
        batch, length, _ = block.shape
        queries = self.q_norm(self.q_proj(block).reshape(batch, length, self.n_heads, -1))
        queries = queries.transpose(0, 2, 1, 3)
        # Context rows end where the block begins, so both take one projection and one rotation.
        rows = block if context is None else mx.concatenate([context, block], axis=1)
        keys, values = self.extend(rows, cache)
        cache.trim(length)
        queries = self.rope(queries, offset=cache.offset)
        keys, values, mask = self._visible(keys, values, length)
        output = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask
        )
        return self.o_proj(output.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    def _visible(
        self, keys: mx.array, values: mx.array, length: int
    ) -> tuple[mx.array, mx.array, mx.array | None]:
        """What the block may see: all of it, or the last ``window`` positions of each row."""
        if self.window is None:
            return keys, values, None
        keep = min(keys.shape[2], self.window + length - 1)
        keys, values = keys[..., -keep:, :], values[..., -keep:, :]
        key_at = mx.arange(keep)[None]
        query_at = mx.arange(keep - length, keep)[:, None]
        mask = query_at - key_at < self.window
        if self.causal:
            mask = mask & (key_at <= query_at)
        return keys, values, mask


class DraftMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """One pre-norm decoder layer. Context features are not normed here: ``hidden_norm`` did it."""

    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, layer)
        self.mlp = DraftMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention_conv = _convolution(config)
        self.mlp_conv = _convolution(config)

    def __call__(self, x: mx.array, context: mx.array | None, cache: KVCache) -> mx.array:
        def attend(rows: mx.array) -> mx.array:
            return self.self_attn(rows, context, cache)

        x = x + _convolved(self.attention_conv, self.input_layernorm(x), attend)
        return x + _convolved(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)


def _convolution(config: DraftConfig) -> BlockConvolution | None:
    if not config.conv_kernel_size:
        return None
    return BlockConvolution(config.hidden_size, config.conv_kernel_size, config.conv_group_size)


def _convolved(
    conv: BlockConvolution | None, normed: mx.array, sublayer: Callable[[mx.array], mx.array]
) -> mx.array:
    """A sub-layer with the convolution before and behind it, if there is one."""
    if conv is None:
        return sublayer(normed)
    kernels = conv.kernels(normed)
    return conv(sublayer(conv(normed, kernels, 0)), kernels, 1)


class DraftModel(nn.Module):
    """The whole draft; its caches hold context K/V only."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DraftLayer(config, i) for i in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.candidate_selector: CandidateSelector | None = None
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(
                config.hidden_size, config.vocab_size, config.selector_rank, config.selector_top_k
            )

    def make_caches(self) -> list[KVCache]:
        """One empty context cache per layer."""
        return [KVCache() for _ in self.layers]

    def context(self, features: mx.array) -> mx.array:
        """Context rows [B, L, H] of target features [B, L, len(ids) * H]."""
        return self.hidden_norm(self.fc(features))

    def extend_context(self, features: mx.array, caches: list[KVCache]) -> None:
        """Append features of committed tokens to the caches, without drafting."""
        rows = self.context(features)
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.self_attn.extend(rows, cache)

    def __call__(
        self, block: mx.array, features: mx.array | None, caches: list[KVCache]
    ) -> mx.array:
        """Normed hidden rows [B, bs, H] of the embedded ``block`` [B, bs, H].

        ``features`` [B, L, len(ids) * H] of newly committed tokens become context first.
        """
        context = None if features is None else self.context(features)
        x = block
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, context, cache)
        return self.norm(x)

    def scaled_logits(self, logits: mx.array) -> mx.array:
        """The target head's logits as this draft wants them: multiplied, then soft-capped."""
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return cap * mx.tanh(logits / cap) if cap > 0 else logits
