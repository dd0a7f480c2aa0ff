"""Which stored token sequence serves a prompt best: the longest usable common prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
"""Token ids of one sequence [L]; compared, never changed."""

LEAST_TOKENS = 8
"""A shorter reuse is not worth the copy."""

MissReason = Literal["cold", "boundary", "no_draft", "off", "retired", "unreadable"]
"""Why nothing was reused: nothing alike is stored; something is, but its state serves only its own
end; or it was stored without the draft's context. ``off``, ``retired`` and ``unreadable`` speak
of the cache, not of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A stored snapshot as far as choosing goes.

    ``aligned_tokens``: how many of its first rows came from whole prefill chunks. ``logits_at``:
    prompt lengths whose last logits it holds.
    """

    key: str
    tokens: Tokens
    trimmable: bool
    has_draft: bool
    aligned_tokens: int
    logits_at: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The best candidate: its key, how many rows of it to reuse, and whether logits are there."""

    key: str
    rows: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a request needs. ``align_tokens``: reuse whole prefill chunks of that size only."""

    tokens: Tokens
    needs_draft: bool
    align_tokens: int | None = None


def best_match(candidates: Iterable[Candidate], query: Query) -> Match | MissReason:
    """The candidate that leaves the least to compute, or why there is none."""
    best: Match | None = None
    reason: MissReason = "cold"
    for candidate in candidates:
        common = common_prefix(candidate.tokens, query.tokens)
        match = _usable(candidate, query, common)
        if isinstance(match, Match):
            if best is None or (match.exact, match.rows) > (best.exact, best.rows):
                best = match
        elif match != "cold" and common >= LEAST_TOKENS:
            reason = match
    return best or reason


def covers(new: Candidate, old: Candidate) -> bool:
    """Whether ``old`` may go because ``new`` has its state too; logits are handed over apart."""
    return (
        new.trimmable
        and (new.has_draft or not old.has_draft)
        and new.aligned_tokens >= old.aligned_tokens
        and common_prefix(new.tokens, old.tokens) == len(old.tokens)
    )


def common_prefix(one: Tokens, other: Tokens) -> int:
    """How many first tokens are the same."""
    length = min(len(one), len(other))
    if length == 0 or one[0] != other[0]:
        return 0
    different = one[:length] != other[:length]
    return int(different.argmax()) if different.any() else length


def _usable(candidate: Candidate, query: Query, common: int) -> Match | MissReason:
    if query.needs_draft and not candidate.has_draft:
        return "no_draft"
    whole = len(query.tokens)
    if common == whole and whole in candidate.logits_at and query.align_tokens is None:
        exact_rows = whole if candidate.trimmable or len(candidate.tokens) == whole else None
        if exact_rows is not None:
            return Match(key=candidate.key, rows=whole, exact=True)
    # One row at least is computed: it gives the logits of the first token.
    rows = min(common, whole - 1)
    if query.align_tokens is not None:
        rows = min(rows, candidate.aligned_tokens)
        rows -= rows % query.align_tokens
    if not candidate.trimmable and rows < len(candidate.tokens):
        return "boundary"
    if rows < LEAST_TOKENS:
        return "cold"
    return Match(key=candidate.key, rows=rows, exact=False)
