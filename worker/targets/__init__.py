"""Target adapters: one file per family, all of one shape (see :class:`target.Target`)."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn

from .attention import AttentionTarget
from .cohere import CohereTarget
from .gated_delta import GatedDeltaTarget
from .gemma import Gemma3Target, Gemma4Target
from .granite import GraniteTarget
from .latent import LatentTarget
from .muse_glimmer import MuseGlimmerTarget
from .short_conv import ShortConvTarget
from .sliding import SlidingTarget
from .target import StockTarget, Target
from .trunk import TrunkTarget

ADAPTERS: tuple[type[TrunkTarget], ...] = (
    AttentionTarget,
    SlidingTarget,
    Gemma3Target,
    Gemma4Target,
    MuseGlimmerTarget,
    GatedDeltaTarget,
    ShortConvTarget,
    LatentTarget,
    GraniteTarget,
    CohereTarget,
)
"""In the order they are tried: a family may be served by several, each for some of its members."""

FAMILIES = frozenset().union(*(adapter.families for adapter in ADAPTERS))


def adapt(model: nn.Module, config: dict[str, Any]) -> Target:
    """The adapter for a loaded mlx-lm model: one that can roll back and give features, or none.

    A :class:`StockTarget` decodes plainly only; ``supports_drafts`` tells.
    """
    family = config.get("model_type")
    for adapter in ADAPTERS:
        if family in adapter.families and adapter.fits(model):
            return adapter(model)
    return StockTarget(model)


def why_no_drafts(config: dict[str, Any]) -> str:
    """Why :func:`adapt` gave a model no adapter with drafts, as the end of "the target is …"."""
    family = str(config.get("model_type"))
    if family in FAMILIES:
        return f"of the family {family} but has caches that cannot be rolled back"
    return f"of the family {family}, which cannot be drafted for"


def supported_families() -> str:
    """For error messages."""
    return ", ".join(sorted(FAMILIES))
