"""A draft meets its target: do they fit, and what do they make together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody
from ..checkpoints.draft_config import DraftConfig
from ..checkpoints.target_shape import TargetShape, check_pair
from ..decoding.drafting import Drafter
from ..targets import supported_families, why_no_drafts
from ..targets.target import Target

CPU_ROWS = 4
"""Rows that a CPU's matrix kernels compute at a time."""
FREQUENT_TOKENS = "frequent_tokens.json"


def check_target(
    target: Target, config: dict[str, Any], shape: DraftConfig, body: LoadBody
) -> TargetShape:
    """What the target is, if it can be drafted for and the draft of that shape fits it.

    Raises:
        DflashError: unsupported or load_failed, naming the mismatch.
    """
    if not target.supports_drafts:
        raise DflashError(
            ErrorCode.unsupported,
            f"target {body.target} is {why_no_drafts(config)}; "
            f"supported are models of the families {supported_families()}",
        )
    probe = target.embed(mx.array([[0]]))
    found = TargetShape(
        name=body.target,
        hidden_size=probe.shape[-1],
        vocab_size=target.head(probe).shape[-1],
        num_layers=len(target.layers),
    )
    check_pair(shape, found, str(body.draft))
    return found


def proposed_tokens(folder: Path, vocab_size: int) -> tuple[int, ...] | None:
    """The tokens this draft proposes at all, if its folder limits them to the frequent ones."""
    file = folder / FREQUENT_TOKENS
    if not file.exists():
        return None
    tokens: list[int] = json.loads(file.read_text())
    if not tokens or not all(type(t) is int and 0 <= t < vocab_size for t in tokens):
        raise DflashError(
            ErrorCode.load_failed, f"{file} must be a list of token ids below {vocab_size}"
        )
    return tuple(sorted(set(tokens)))


def block_tokens(body: LoadBody, drafter: Drafter | None) -> int:
    """The configured block, else the checkpoint's, on a CPU cut to whole groups of rows.

    A CPU's matrix kernels take rows in fours: a fifth costs about as much as four more.
    """
    if drafter is None:
        return 1
    trained = drafter.draft.config.block_tokens
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    whole = trained // CPU_ROWS * CPU_ROWS if on_cpu and trained > CPU_ROWS else trained
    return body.block_tokens or whole


def block_tokens_limit(body: LoadBody, drafter: Drafter | None) -> int:
    """The longest block a request may ask for: what the draft was trained for, or is set to."""
    if drafter is None:
        return 0
    return max(drafter.draft.config.block_tokens, body.block_tokens or 0)
