"""What ``target = …`` and ``draft = …`` may name, and the folder each stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...protocol.errors import DflashError, ErrorCode
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
    known = TARGETS if kind == "target" else DRAFTS
    other = DRAFTS if kind == "target" else TARGETS
    if spec in other and spec not in known:
        wanted = ", ".join(sorted(known))
        raise DflashError(
            ErrorCode.bad_request,
            f"{spec} is no {kind}, it is an embedded {_other(kind)}; embedded {kind}s: {wanted}",
        )
    if spec in known:
        if kind == "draft":
            return draft_folder(spec)
        return embedded_copy(TARGETS[spec], cache_dir()) or fetch(spec, kind, errand)
    # A bare "a/b" is always the hub's: what it means must not depend on where we were started.
    if spec.startswith(("/", "./", "../", "~")):
        return _local(Path(spec).expanduser(), spec, kind)
    if spec.count("/") != 1:
        names = ", ".join(sorted(known))
        raise DflashError(
            ErrorCode.not_found,
            f"{kind} {spec!r} is neither an embedded name ({names}) nor a local folder "
            "(/path, ./path, ~/path) nor a hub repository (owner/name)",
        )
    return hub_copy(spec) or fetch(spec, kind, errand)


def _local(path: Path, spec: str, kind: Literal["target", "draft"]) -> Path:
    what_to_do = f"correct the {kind}'s path, or put the model there"
    if not path.is_dir():
        raise DflashError(ErrorCode.not_found, f"there is no folder {spec}: {what_to_do}")
    if not (path / "config.json").is_file():
        raise DflashError(
            ErrorCode.not_found, f"the folder {spec} is no model (no config.json): {what_to_do}"
        )
    return path.resolve()


def _other(kind: Literal["target", "draft"]) -> str:
    return "draft" if kind == "target" else "target"
