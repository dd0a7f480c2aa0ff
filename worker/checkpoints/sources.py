"""What ``target = …`` and ``draft = …`` may name, and the folder each stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.model_names import place_of
from ...protocol.paths import cache_dir
from ..errand import Errand
from .embedded import DRAFTS, TARGETS, draft_folder
from .embedded_folder import embedded_copy
from .fetch import fetch
from .hub import hub_copy


def resolve(
    spec: str,
    errand: Errand,
    kind: Literal["target", "draft"],
) -> Path:
    """The folder of a local path, an embedded name or a hub repository; fetched if need be, by
    another process. Raises DflashError with a sentence that says what to do.
    """
    match place_of(spec):
        case "folder":
            return _local(Path(spec).expanduser(), spec, kind)
        case "hub":
            return hub_copy(spec) or fetch(spec, errand)
        case "embedded" if spec in TARGETS and kind == "target":
            return embedded_copy(TARGETS[spec], cache_dir()) or fetch(spec, errand)
        case "embedded" if spec in DRAFTS and kind == "draft":
            return draft_folder(spec)
        case _:
            raise _unknown(spec, kind)


def _local(path: Path, spec: str, kind: Literal["target", "draft"]) -> Path:
    what_to_do = f"correct the {kind}'s path, or put the model there"
    if not path.is_dir():
        raise DflashError(ErrorCode.not_found, f"there is no folder {spec}: {what_to_do}")
    if not (path / "config.json").is_file():
        raise DflashError(
            ErrorCode.not_found, f"the folder {spec} is no model (no config.json): {what_to_do}"
        )
    return path.resolve()


def _unknown(spec: str, kind: Literal["target", "draft"]) -> DflashError:
    names = ", ".join(sorted(TARGETS if kind == "target" else DRAFTS))
    if spec in TARGETS or spec in DRAFTS:
        other = "draft" if kind == "target" else "target"
        return DflashError(
            ErrorCode.bad_request,
            f"{spec} is no {kind}, it is an embedded {other}; embedded {kind}s: {names}",
        )
    return DflashError(
        ErrorCode.not_found,
        f"{kind} {spec!r} is neither an embedded name ({names}) nor a local folder "
        "(/path, ./path, ~/path) nor a hub repository (owner/name)",
    )
