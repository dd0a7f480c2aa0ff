"""Which draft goes with which target. Pure.

Shapes decide what can work; names tell what was meant. A pair that only fits is proposed, never
made: a draft of another fine-tune of the same shape loads well and is hardly ever right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .models import Found
from .shapes import TargetShape, base_name, draft_shape, misfit, target_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, the draft that is its own, and others that could be tried."""

    target: str
    draft: str | None
    why: str
    others: list[str] = field(default_factory=list[str])
    """Drafts made for this target too."""
    fitting: list[str] = field(default_factory=list[str])
    """Drafts whose shape fits, while their name says another model."""


def pairs(found: Sequence[Found]) -> list[Pair]:
    """Every target once."""
    drafts = [one for one in found if one.is_draft]
    return [pair_of(one, drafts) for one in found if not one.is_draft]


def pair_of(target: Found, drafts: Sequence[Found]) -> Pair:
    """A target and what there is for it."""
    shape = target_shape(target.config)
    fitting = [one.spec for one in drafts if not misfit(draft_shape(one.config), shape)]
    own = sorted(
        (spec for spec in fitting if base_name(spec) == base_name(target.spec)),
        key=lambda spec: (len(spec), spec),
    )
    if not own:
        why = "no draft here was made for it: it decodes plainly"
        return Pair(target=target.spec, draft=None, why=why, fitting=fitting)
    return Pair(
        target=target.spec,
        draft=own[0],
        why=f"{words(shape)} as the draft expects, and the names agree",
        others=own[1:],
        fitting=[spec for spec in fitting if spec not in own],
    )


def unpaired(found: Sequence[Found], made: Sequence[Pair]) -> list[tuple[str, str]]:
    """Drafts that no target uses, each with the target it was made for."""
    used = {spec for pair in made for spec in (pair.draft, *pair.others, *pair.fitting)}
    return [(one.spec, needs(one)) for one in found if one.is_draft and one.spec not in used]


def needs(draft: Found) -> str:
    """The target that a draft is waiting for, in words."""
    shape = draft_shape(draft.config)
    expected = TargetShape(
        hidden_size=shape.hidden_size, vocab_size=shape.vocab_size, layers=shape.target_layers
    )
    return f"a draft for {base_name(draft.spec)} ({words(expected)}), which is not here"


def words(shape: TargetShape) -> str:
    """A target's shape."""
    return f"hidden size {shape.hidden_size}, {shape.layers} layers, {shape.vocab_size} tokens"
