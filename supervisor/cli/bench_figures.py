"""What measurements of one model say: the fastest way to run it, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from .table import Table

PLAIN = 1
"""The block length that stands for plain decoding."""
NOISE_RATIO = 1.03
"""Less than this apart is the same speed."""


class Measurement(Struct, frozen=True, kw_only=True):
    """One round of all prompts at one block length. ``tokens`` without the first of each answer:
    that is the prompt's work.
    """

    block_tokens: int
    tokens: int
    cycles: int
    decode_ms: float
    texts: tuple[str, ...]


class Figures(Struct, frozen=True, kw_only=True):
    """One block length over all rounds; ``block_tokens`` 1 is plain decoding."""

    block_tokens: int
    tokens_per_s: float
    tokens_per_s_least: float
    tokens_per_s_most: float
    over_plain_ratio: float
    acceptance_length_tokens: float
    cycle_over_plain_step_ratio: float
    same_text: bool


class Verdict(Struct, frozen=True, kw_only=True):
    """The best block length (1: plain decoding), why, and what to do about it."""

    best_block_tokens: int
    reason: str
    advice: str


def figures_of(measured: Sequence[Measurement]) -> tuple[Figures, ...]:
    """Medians by block length; the plain measurements must be among them."""
    lengths = sorted({one.block_tokens for one in measured})
    by_length = {n: [one for one in measured if one.block_tokens == n] for n in lengths}
    plain = by_length[PLAIN]
    plain_speed = median(map(speed, plain))
    step_ms = 1000 / plain_speed
    return tuple(
        Figures(
            block_tokens=length,
            tokens_per_s=(middle := median(map(speed, rounds))),
            tokens_per_s_least=min(map(speed, rounds)),
            tokens_per_s_most=max(map(speed, rounds)),
            over_plain_ratio=middle / plain_speed,
            acceptance_length_tokens=(accepted := median(map(acceptance, rounds))),
            cycle_over_plain_step_ratio=accepted * 1000 / middle / step_ms,
            same_text=all(one.texts == plain[0].texts for one in rounds),
        )
        for length, rounds in by_length.items()
    )


def speed(one: Measurement) -> float:
    """Tokens a second."""
    return 1000 * one.tokens / max(one.decode_ms, 1e-6)


def acceptance(one: Measurement) -> float:
    """Tokens a cycle."""
    return one.tokens / max(one.cycles, 1)


def verdict(figures: Sequence[Figures], configured: int, model: str) -> Verdict:
    """``configured``: the model's own block length, 1 without a draft."""
    plain, *drafted = figures
    if not drafted:
        return Verdict(
            best_block_tokens=PLAIN,
            reason=f"{model} has no draft, so it decodes one token at a time",
            advice="a DFlash draft that was made for its target would make it faster",
        )
    best = max(drafted, key=lambda one: one.tokens_per_s)
    bought = (
        f"blocks of {best.block_tokens} commit {best.acceptance_length_tokens:.2f} tokens a cycle, "
        f"which costs {best.cycle_over_plain_step_ratio:.2f} plain steps"
    )
    if best.tokens_per_s <= plain.tokens_per_s:
        return Verdict(
            best_block_tokens=PLAIN,
            reason=f"no length beats plain decoding on this machine: {bought}",
            advice=f"leave `draft` out of [models.{model}], or use a better draft",
        )
    reason = f"{bought}: {best.over_plain_ratio:.2f} times plain decoding; {longer(best, drafted)}"
    return Verdict(
        best_block_tokens=best.block_tokens,
        reason=reason,
        advice=advice(best, drafted, configured, model),
    )


def longer(best: Figures, drafted: Sequence[Figures]) -> str:
    """Why not a longer block."""
    after = next((one for one in drafted if one.block_tokens > best.block_tokens), None)
    if after is None:
        return "no longer blocks were measured"
    return (
        f"blocks of {after.block_tokens} commit {after.acceptance_length_tokens:.2f} for "
        f"{after.cycle_over_plain_step_ratio:.2f} steps"
    )


def advice(best: Figures, drafted: Sequence[Figures], configured: int, model: str) -> str:
    """What to change, if it is worth it."""
    own = next((one for one in drafted if one.block_tokens == configured), None)
    if own is not None and best.tokens_per_s < own.tokens_per_s * NOISE_RATIO:
        return f"nothing to change: its block_tokens is {configured}, which is as fast"
    if own is not None and best.tokens_per_s_least <= own.tokens_per_s_most:
        return (
            f"its block_tokens is {configured}; rounds differ more than that: measure again on a "
            "quiet machine, or with more --rounds"
        )
    return f"set block_tokens = {best.block_tokens} in [models.{model}], then `dflashctl reload`"


def table(figures: Sequence[Figures]) -> Table:
    """The figures for a person."""
    heads = ("BLOCK", "TOKENS/S", "LEAST", "MOST", "OVER PLAIN", "ACCEPTED", "CYCLE/STEP", "TEXT")
    return Table(heads, [cells(one) for one in figures])


def cells(one: Figures) -> tuple[str, ...]:
    """One line."""
    plain = one.block_tokens == PLAIN
    return (
        "plain" if plain else str(one.block_tokens),
        f"{one.tokens_per_s:.1f}",
        f"{one.tokens_per_s_least:.1f}",
        f"{one.tokens_per_s_most:.1f}",
        f"{one.over_plain_ratio:.2f}",
        f"{one.acceptance_length_tokens:.2f}",
        f"{one.cycle_over_plain_step_ratio:.2f}",
        "same" if one.same_text else "differs",
    )
