"""What a target is to a draft, and whether the two were made for each other."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.errors import DflashError, ErrorCode
from .draft_config import DraftConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """What a draft must agree with."""

    name: str
    hidden_size: int
    vocab_size: int
    num_layers: int


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
        if expected not in (0, actual):
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
    if draft.mask_token_id >= target.vocab_size:
        raise DflashError(
            ErrorCode.load_failed,
            f"draft {where}: mask_token_id {draft.mask_token_id} is outside the vocabulary of "
            f"{target.name}; use the draft made for this target",
        )
