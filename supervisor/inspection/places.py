"""Where the files of a configured model are on this disk; nothing is fetched."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ...protocol.model_names import place_of
from ...protocol.paths import cache_dir

MAIN_REVISION = "main"


def folder_of(spec: str, kind: Literal["target", "draft"]) -> Path | None:
    """The folder that the worker will read for ``spec``; None: it is not on this disk."""
    match place_of(spec):
        case "folder":
            folder = _expanded(spec)
        case "hub":
            folder = _hub_snapshot(spec)
        case "embedded":
            folder = _embedded(spec, kind)
        case None:
            return None
    if folder is None or not (folder / "config.json").is_file():
        return None
    return folder.resolve()


def _expanded(spec: str) -> Path | None:
    try:
        return Path(spec).expanduser()
    except RuntimeError:  # no home, or no such user
        return None


def _embedded(name: str, kind: Literal["target", "draft"]) -> Path | None:
    if kind == "target":
        return cache_dir() / "models" / name
    drafts = _drafts_folder()
    return drafts / name if drafts else None


def embedded_drafts() -> list[str]:
    """The drafts that dflashd brings along."""
    drafts = _drafts_folder()
    return sorted(file.parent.name for file in drafts.glob("*/config.json")) if drafts else []


def _drafts_folder() -> Path | None:
    # The package's place without importing it, which would load the model libraries.
    found = find_spec("dflashd.worker")
    places = found.submodule_search_locations if found else None
    return Path(next(iter(places))) / "drafts" if places else None


def _hub_snapshot(spec: str) -> Path | None:
    """What huggingface_hub keeps of ``owner/name`` or ``owner/name@revision``."""
    repo, _, revision = spec.partition("@")
    kept = hub_cache() / ("models--" + repo.replace("/", "--"))
    commit = revision or MAIN_REVISION
    with suppress(OSError, ValueError):  # a commit by its hash has no such file
        commit = (kept / "refs" / commit).read_text().strip()
    return kept / "snapshots" / commit


def hub_cache() -> Path:
    """The hub's cache by the variables that its own library reads."""
    if chosen := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    return Path(home).expanduser() / "hub"
