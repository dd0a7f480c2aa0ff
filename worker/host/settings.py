"""How a host's model is loaded: the keys of a configuration section, as keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import msgspec

from ...protocol.errors import DflashError, ErrorCode
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
    given = {"target": _spec(target), "draft": _spec(draft), **options}
    try:
        msgspec.convert(name, Name)
        return msgspec.convert(msgspec.to_builtins(given), LoadBody)
    except msgspec.ValidationError as error:
        raise DflashError(ErrorCode.bad_request, f"model {name!r}: {error}") from error


def _spec(place: str | Path | None) -> str | None:
    return str(place.absolute()) if isinstance(place, os.PathLike) else place
