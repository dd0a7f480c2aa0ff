"""Where a prompt's passes end, and at which of these ends a snapshot is worth its copy.

State that can be trimmed (plain KV) serves every prefix of what it holds, so one snapshot at the
end is enough. Recurrent and wrapped rotating state serves only the very place it was taken at;
those places are chosen here: where prompts of the same kind will part.
"""

from __future__ import annotations

SPACING_CHUNKS = 8
"""Chunks between the widely spaced snapshots of a long prompt."""

LAST_CHUNKS = 2
"""Chunk ends before the prompt's end that get a snapshot of their own."""


def pass_end(start: int, prompt_tokens: int, chunk_tokens: int, stops: tuple[int, ...]) -> int:
    """Where the prefill pass that begins at ``start`` ends.

    Passes end at multiples of ``chunk_tokens``, at ``stops`` and at the prompt's end: whoever
    reads the same prompt from the same start uses the same passes.
    """
    multiple = (start // chunk_tokens + 1) * chunk_tokens
    return min(multiple, prompt_tokens, *(stop for stop in stops if stop > start))


def boundaries(
    prompt_tokens: int, chunk_tokens: int, turns: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Where to take snapshots that cannot be trimmed, in rising order; all inside the prompt.

    ``turns`` are places where other prompts may part from this one: the end of the shared system
    part, the begin of the tail that templates render anew.
    """
    chosen = {turn for turn in turns if 0 < turn < prompt_tokens}
    chosen |= set(
        range(SPACING_CHUNKS * chunk_tokens, prompt_tokens, SPACING_CHUNKS * chunk_tokens)
    )
    last = (prompt_tokens - 1) // chunk_tokens
    chosen |= {n * chunk_tokens for n in range(max(1, last - LAST_CHUNKS + 1), last + 1)}
    return tuple(sorted(chosen))
