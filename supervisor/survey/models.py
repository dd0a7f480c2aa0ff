"""The models on this disk: in the hub's cache, and those that dflashd brings along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..inspection.places import MAIN_REVISION, embedded_drafts, folder_of, hub_cache
from ..inspection.tensors import read_tensors
from .shapes import cannot_run, is_draft

EMBEDDED_TARGET = "smollm2-135m"
REPOSITORY = "models--"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model as a configuration names it, and its ``config.json``."""

    spec: str
    config: Mapping[str, object]

    @property
    def is_draft(self) -> bool:
        """Whether it goes under ``draft``."""
        return is_draft(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that looked like a model, and why it is none for us."""

    spec: str
    reason: str


def survey() -> tuple[list[Found], list[LeftOut]]:
    """All of them, by name; nothing is fetched, and no weight is read."""
    found: list[Found] = []
    left_out: list[LeftOut] = []
    for spec, folder in places():
        one = looked_at(spec, folder)
        if isinstance(one, Found):
            found.append(one)
        else:
            left_out.append(one)
    return found, left_out


def places() -> Iterator[tuple[str, Path | None]]:
    """Every model's name and folder."""
    if embedded := folder_of(EMBEDDED_TARGET, "target"):
        yield EMBEDDED_TARGET, embedded
    for name in embedded_drafts():
        yield name, folder_of(name, "draft")
    cache = hub_cache()
    for kept in sorted(cache.glob(f"{REPOSITORY}*")) if cache.is_dir() else ():
        repository = kept.name.removeprefix(REPOSITORY).replace("--", "/", 1)
        yield from ((spec, folder_of(spec, "target")) for spec in revisions(repository, kept))


def revisions(repository: str, kept: Path) -> Iterator[str]:
    """The repository as it is kept: its main branch, else the one commit that is there."""
    commits = sorted(path.name for path in (kept / "snapshots").glob("*"))
    if (kept / "refs" / MAIN_REVISION).is_file() or not commits:
        yield repository
    else:
        yield f"{repository}@{commits[-1]}"


def looked_at(spec: str, folder: Path | None) -> Found | LeftOut:
    """What is in a folder."""
    if "/" not in spec and spec.startswith(REPOSITORY):
        return LeftOut(spec=spec, reason="it has no owner")
    if folder is None:
        return LeftOut(spec=spec, reason="no config.json: not a model, or not fetched whole")
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, object])
        reason = cannot_run(config)
        if not reason:
            _ = read_tensors(folder)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).replace(str(folder), "it").split())
        return LeftOut(spec=spec, reason=reason)
    return LeftOut(spec=spec, reason=reason) if reason else Found(spec=spec, config=config)
