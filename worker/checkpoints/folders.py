"""The checkpoints a configuration names: their folders, and what is known without their weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody
from ...protocol.paths import cache_dir
from ..errand import Errand
from .digest import MEMO, folder_digest, folder_marks
from .draft_config import DraftConfig, draft_config
from .draft_kinds import is_draft
from .fields import Fields, read_config, text_fields
from .sources import resolve

DEFAULT_CONTEXT_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder and its weights digest. ``marks``: what the file system told before it was read."""

    folder: Path
    digest: str
    marks: frozenset[str]

    def check(self) -> None:
        """Are the files still those that were read first? Settings count too: what was decided by
        them would not fit the model that is made of others.

        Raises:
            DflashError: load_failed.
        """
        if folder_marks(self.folder) != self.marks:
            raise DflashError(
                ErrorCode.load_failed,
                f"the files in {self.folder} changed while they were being loaded; "
                "load again when they are complete",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What a load starts from. What the configurations alone rule out never comes to be one."""

    target: Checkpoint
    draft: Checkpoint | None
    shape: DraftConfig | None
    """The draft's network."""
    why_plain: str
    """Why the model decodes plainly; empty where it does not."""
    context_tokens: int

    def check(self) -> None:
        """Raise DflashError if files were touched since they were first read."""
        for checkpoint in (self.target, self.draft):
            if checkpoint is not None:
                checkpoint.check()


def find(body: LoadBody, errand: Errand) -> Checkpoints:
    """Resolve, fetch if need be, read the configurations and digest the weights: all of a load that
    needs no mlx.

    Raises:
        DflashError: not_found, bad_request, unsupported or load_failed.
    """
    target = resolve(body.target, errand, "target")
    draft, why_plain = None, _why_plain(body)
    if body.draft and not why_plain:
        draft = resolve(body.draft, errand, "draft")
    marks = {folder: folder_marks(folder) for folder in (target, draft) if folder}
    # What the configurations alone rule out is refused before any weights are read.
    context_tokens = _context_tokens(body, _target_config(target, body))
    shape = draft_config(read_config(draft), str(body.draft)) if draft else None
    return Checkpoints(
        draft=_digested(draft, marks, errand) if draft else None,
        target=_digested(target, marks, errand),
        shape=shape,
        why_plain=why_plain,
        context_tokens=context_tokens,
    )


def _digested(folder: Path, marks: dict[Path, frozenset[str]], errand: Errand) -> Checkpoint:
    digest = folder_digest(folder, errand, cache_dir() / MEMO)
    return Checkpoint(folder=folder, digest=digest, marks=marks[folder])


def _why_plain(body: LoadBody) -> str:
    if body.draft is None:
        return "no draft is configured for this model"
    return "block_tokens is 1, which leaves nothing to draft" if body.block_tokens == 1 else ""


def _target_config(folder: Path, body: LoadBody) -> dict[str, Any]:
    config = read_config(folder)
    if is_draft(config):
        raise DflashError(
            ErrorCode.load_failed,
            f"target {body.target} is a DFlash draft, not a model; put it under 'draft' and name "
            "the model it was made for as 'target'",
        )
    return config


def _context_tokens(body: LoadBody, config: dict[str, Any]) -> int:
    longest = _longest_tokens(text_fields(config))
    if body.context_tokens and body.context_tokens > longest:
        raise DflashError(
            ErrorCode.bad_request,
            f"context_tokens {body.context_tokens} is more than the {longest} tokens that "
            f"{body.target} was made for",
        )
    return body.context_tokens or longest


def _longest_tokens(fields: Fields) -> int:
    """What it was made for, or is stretched to: model cards tell people to add YaRN by hand."""
    made_for = fields.whole("max_position_embeddings", DEFAULT_CONTEXT_TOKENS)
    scaling = Fields(fields.section("rope_scaling"), fields.section("rope_parameters"))
    if "yarn" not in (scaling.raw("type"), scaling.raw("rope_type")):
        return made_for
    original = scaling.whole("original_max_position_embeddings", made_for)
    return max(made_for, int(original * scaling.number("factor", 1.0)))
