"""The state of every layer's cache: capture and restore.

A kind that ``layer_kinds.py`` does not list is refused by name: its model is then not cached.
"""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import CacheList

from .layer_kinds import CAPTURE, CUTTABLE, RESTORE
from .layer_state import LayerState


class UnknownCacheKind(TypeError):
    """A cache kind this module does not know; the message names it. Such a model is not cached."""


def unknown_kind(caches: list[Any]) -> str | None:
    """The name of the first kind that cannot be captured, or None."""
    for cache in caches:
        if type(cache) is CacheList:
            inner = unknown_kind(list(cache.caches))
            if inner is not None:
                return inner
        elif type(cache) not in CAPTURE:
            return type(cache).__name__
    return None


def cuttable(caches: list[Any]) -> bool:
    """Whether every state these caches can ever be in can be cut to any prefix of it."""
    return all(
        cuttable(list(cache.caches)) if type(cache) is CacheList else type(cache) in CUTTABLE
        for cache in caches
    )


def capture_all(caches: list[Any], held: int, rows: int) -> tuple[LayerState, ...]:
    """Copies of the first ``rows`` of ``held`` rows of all layers; raises as :func:`capture`."""
    states = tuple(capture(cache, rows) for cache in caches)
    if rows != held and not all(state.trimmable for state in states):
        raise ValueError(f"a state behind {held} tokens cannot be cut to {rows}")
    return states


def restore_all(states: tuple[LayerState, ...], caches: list[Any], rows: int) -> None:
    """Put ``rows`` rows into fresh caches; raises as :func:`restore`."""
    for state, cache in zip(states, caches, strict=True):
        restore(state, cache, rows)


def capture(cache: Any, rows: int) -> LayerState:
    """A detached copy (lazy) of the first ``rows`` rows.

    Raises:
        UnknownCacheKind: see there.
        ValueError: the cache holds another number of rows and cannot be cut.
    """
    if type(cache) is CacheList:
        parts = tuple(capture(part, rows) for part in cache.caches)
        return LayerState(
            kind="CacheList",
            numbers=(),
            arrays=(),
            trimmable=all(part.trimmable for part in parts),
            rows=max((part.rows for part in parts if part.rows is not None), default=None),
            parts=parts,
        )
    handler = CAPTURE.get(type(cache))
    if handler is None:
        raise UnknownCacheKind(f"{type(cache).__name__} is not a cache kind that can be stored")
    return handler(cache, rows)


def restore(state: LayerState, cache: Any, rows: int) -> None:
    """Put the first ``rows`` rows of ``state`` into ``cache``, a fresh one of the same layer.

    Raises:
        ValueError: the cache is of another kind or setting, or the state cannot be cut to ``rows``.
    """
    if type(cache).__name__ != state.kind:
        raise ValueError(f"a {state.kind} state does not fit a {type(cache).__name__}")
    if (
        state.rows is not None
        and rows != state.rows
        and not (state.trimmable and rows < state.rows)
    ):
        raise ValueError(f"{state.kind}: a state of {state.rows} rows cannot serve {rows}")
    if state.kind == "CacheList":
        for part, inner in zip(state.parts, cache.caches, strict=True):
            restore(part, inner, rows)
        return
    RESTORE[state.kind](state, cache, rows)
