"""Which checkpoints are drafts, and which of those we can run."""

from __future__ import annotations

from typing import Any

from ...protocol.errors import DflashError, ErrorCode
from .fields import shown

SUPPORTED = "DFlashDraftModel, DFlash2DraftModel and MuseGlimmerAssistantModel checkpoints"
VERSION_2 = "DFlash2DraftModel"
ASSISTANT = "MuseGlimmerAssistantModel"
DRAFT_ARCHITECTURES = frozenset({"DFlashDraftModel", VERSION_2, ASSISTANT})
UNSUPPORTED_MARKS = {
    "DFlashLaguna": "a Laguna draft",
    "DSpark": "a DSpark draft",
    "Domino": "a Domino draft",
}
"""What an architecture's name holds if it is a draft of a kind we cannot run: these exist for
several target families, each with a prefix or suffix of its own."""


def is_draft(config: dict[str, Any]) -> bool:
    """Whether this is a draft of any kind, supported or not: never a model of its own."""
    return "dflash_config" in config or any(
        name in DRAFT_ARCHITECTURES or _unsupported_kind(name) for name in architectures(config)
    )


def refuse_other_kinds(config: dict[str, Any], where: str) -> None:
    """Refuse what is no draft that we can run; ``where`` names it.

    Raises:
        DflashError: unsupported, with what is supported.
    """
    names = architectures(config)
    for name in names:
        if kind := _unsupported_kind(name):
            raise DflashError(
                ErrorCode.unsupported,
                f"draft {where} is {kind} ({shown(name)}); supported are {SUPPORTED}",
            )
    if "use_swa" in config:
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is a ModelOpt export (it has use_swa); supported are {SUPPORTED}",
        )
    if config.get("quantization_config") and not config.get("quantization"):
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is quantised for other software; supported are {SUPPORTED}, dense or "
            "as mlx-lm quantises",
        )
    if not DRAFT_ARCHITECTURES & set(names):
        kind = names or config.get("model_type") or "nothing known"
        raise DflashError(
            ErrorCode.unsupported,
            f"draft {where} is not a DFlash draft ({shown(kind)}); supported are {SUPPORTED}. "
            "A full model belongs under 'target'",
        )


def architectures(config: dict[str, Any]) -> list[str]:
    """The architectures' names; none where the field is not what it should be."""
    names: Any = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _unsupported_kind(architecture: str) -> str | None:
    kinds = (kind for mark, kind in UNSUPPORTED_MARKS.items() if mark in architecture)
    return next(kinds, None)
