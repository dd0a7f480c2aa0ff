"""How a host's model is loaded: the keys of a configuration section, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from ...protocol.arguments import checked
from ...protocol.messages import CacheSettings, LoadBody, Name, Sampling


class LoadOptions(TypedDict, total=False):
    """As in ``[models.NAME]`` of dflashd.example.toml; one left out has the default given there."""

    dtype: Literal["auto", "float32", "bfloat16", "float16", "keep"]
    block_tokens: int | None
    context_tokens: int | None
    prefill_chunk_tokens: int
    max_tokens: int
    sampling: Sampling | Mapping[str, float | int]
    cache: CacheSettings | Mapping[str, object]
    backend: str


def load_body(
    name: str,
    target: str | Path,
    draft: str | Path | None = None,
    **options: Unpack[LoadOptions],
) -> LoadBody:
    """What the engine is asked to load. A ``Path`` is a folder, a string as in the configuration.

    Raises DflashError(bad_request) that names the field.
    """
    name = checked("name", name, Name)
    given = {"target": _spec(target), "draft": _spec(draft), **options}
    body: LoadBody = checked(f"model {name!r}", given, LoadBody)
    return body


def _spec(place: object) -> object:
    return str(place.absolute()) if isinstance(place, Path) else place
