"""Target adapters: one file per family, all of one shape (see :class:`target.Target`)."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn

from .attention import FAMILIES as ATTENTION_FAMILIES, AttentionTarget
from .target import StockTarget, Target


def adapt(model: nn.Module, config: dict[str, Any]) -> Target:
    """The adapter for a loaded mlx-lm model: one that can roll back and give features, or none.

    A :class:`StockTarget` decodes plainly only; ``supports_drafts`` tells.
    """
    if config.get("model_type") in ATTENTION_FAMILIES and AttentionTarget.fits(model):
        return AttentionTarget(model)
    return StockTarget(model)


def why_no_drafts(config: dict[str, Any]) -> str:
    """Why :func:`adapt` gave a model no adapter with drafts, as the end of "the target is …"."""
    family = str(config.get("model_type"))
    if family in ATTENTION_FAMILIES:
        return f"of the family {family} but has sliding-window layers, which cannot be rolled back"
    return f"of the family {family}, which cannot be drafted for"


def supported_families() -> str:
    """For error messages."""
    return ", ".join(sorted(ATTENTION_FAMILIES))
