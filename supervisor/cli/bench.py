"""``dflashctl bench``: one model plainly and with blocks of several lengths, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadedBody, SnapshotBody
from ...protocol.sync import Client
from ..exit_statuses import EXIT_OK
from .bench_figures import PLAIN, Measurement, figures_of, table, verdict
from .connection import connected
from .looks import write_json
from .screen import ProgressLine
from .tables import show

PROMPTS = (
    "Write a Python class for a bank account with deposit, withdraw and a history of both.",
    "Explain to a child why the sky is blue and why sunsets are red.",
)
"""Drafts are right more often about code than about prose, so there is one of each."""
WARM_UP_TOKENS = 8
DOUBLINGS = (2, 4, 8, 16, 32, 64)


def bench(options: argparse.Namespace) -> int:
    """Measure, and say which way is the fastest and why."""
    progress = ProgressLine()
    try:
        loaded, measured, others = measured_all(options, progress)
    finally:
        progress.clear()
    report(options, loaded, measured, others)
    return EXIT_OK


def measured_all(
    options: argparse.Namespace, progress: ProgressLine
) -> tuple[LoadedBody, list[Measurement], int]:
    """The model's facts, all measurements, and how many requests of others ran meanwhile."""
    name: str = options.model
    with connected(options) as client:
        client.spawn(name, on_event=progress)
        before = client.status()
        loaded = loaded_of(before, name)
        lengths = [PLAIN, *drafted_lengths(loaded, options.blocks)]
        prompts: list[str] = options.prompt or list(PROMPTS)
        for length in lengths:
            progress.say(f"warming up {way(length)}")
            measure(client, name, length, prompts[:1], WARM_UP_TOKENS)
        measured: list[Measurement] = []
        for round in range(options.rounds):
            # Each round begins elsewhere, so that no way is always the first or the last.
            turn = round % len(lengths)
            for length in [*lengths[turn:], *lengths[:turn]]:
                progress.say(f"round {round + 1} of {options.rounds}, {way(length)}")
                measured.append(measure(client, name, length, prompts, options.tokens))
        others = finished(client.status()) - finished(before)
        others -= len(lengths) + len(measured) * len(prompts)
    return loaded, measured, others


def report(
    options: argparse.Namespace,
    loaded: LoadedBody,
    measured: Sequence[Measurement],
    others: int,
) -> None:
    """The figures and the verdict."""
    figures = figures_of(measured)
    found = verdict(figures, loaded.block_tokens, options.model)
    if options.json:
        facts = {"model": options.model, "device": loaded.device, "dtype": loaded.dtype}
        facts |= {"digest": loaded.digest, "tokens": options.tokens, "rounds": options.rounds}
        facts |= {"configured_block_tokens": loaded.block_tokens, "other_requests": others}
        write_json({**facts, "figures": figures, "verdict": found})
        return
    show(table(figures))
    best = "plain decoding" if found.best_block_tokens == PLAIN else found.best_block_tokens
    show(f"best: {best}\n  {found.reason}\n  → {found.advice}\n")
    if any(not one.same_text for one in figures):
        show("where the text differs, two tokens were nearly equal: see README, greedy output\n")
    if others:
        show(f"{others} other requests ran meanwhile: measure again on a quiet daemon\n")


def loaded_of(snapshot: SnapshotBody, name: str) -> LoadedBody:
    """The model's facts. Raises DflashError(worker_lost) if it has gone already."""
    for model in snapshot.models:
        if model.name == name and model.loaded is not None:
            return model.loaded
    raise DflashError(ErrorCode.worker_lost, f"model {name} was unloaded just now", retryable=True)


def drafted_lengths(loaded: LoadedBody, asked: list[int] | None) -> list[int]:
    """The block lengths to measure: those asked for, else doublings and the two that are set."""
    limit = loaded.block_tokens_limit
    if loaded.engine == "plain":
        return []
    if asked is not None:
        return asked
    return sorted({loaded.block_tokens, limit, *(n for n in DOUBLINGS if n < limit)} - {0, PLAIN})


def measure(
    client: Client, name: str, length: int, prompts: Sequence[str], tokens: int
) -> Measurement:
    """Answer every prompt once. Greedy, and to the last token: all ways do the same work."""
    made, cycles, decode_ms, texts = 0, 0, 0.0, list[str]()
    for prompt in prompts:
        generation = client.generate(
            name,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            speculation="off" if length == PLAIN else "strict",
            block_tokens=None if length == PLAIN else length,
        )
        completion = generation.wait()
        stats = completion.stats
        if stats.block_tokens != length:
            sentence = f"the engine of {name} drafted {stats.block_tokens} tokens, not {length}"
            raise DflashError(ErrorCode.unsupported, sentence)
        made += max(0, stats.generated_tokens - 1)
        cycles += stats.cycles
        decode_ms += stats.decode_ms
        texts.append(completion.text)
    return Measurement(
        block_tokens=length, tokens=made, cycles=cycles, decode_ms=decode_ms, texts=tuple(texts)
    )


def finished(snapshot: SnapshotBody) -> int:
    """How many requests have ended in all models."""
    return sum(model.completed for model in snapshot.models)


def way(length: int) -> str:
    """A block length in words."""
    return "plain" if length == PLAIN else f"blocks of {length}"
