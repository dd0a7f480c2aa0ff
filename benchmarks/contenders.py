"""The three ways to the same text: mlx-lm, our engine alone, and the whole daemon.

Each gives the decode phase only, first token to last: prompts are not part of it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.generate import stream_generate

from dflashd.protocol import Client
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.model import Model
from dflashd.worker.text.chat import encode

from .daemon import running_daemon
from .workload import PAIR, TOKENS, body


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One decoded answer: its tokens behind the first, the seconds they took, its cycles."""

    text: str
    tokens: int
    seconds: float
    cycles: int


def mlx_lm_run(model: Model, stock: Any, prompt: str) -> Run:
    """``mlx_lm.stream_generate`` on the very same weights."""
    tokens = encode(model.tokenizer, body(prompt), model.vocab_size)
    text, first, last, count = "", 0.0, 0.0, 0
    for response in stream_generate(stock, _without_end(model.tokenizer), tokens, TOKENS):
        last = time.perf_counter()
        first = first or last
        count += 1
        text += response.text
    return Run(text=text, tokens=count - 1, seconds=last - first, cycles=count - 1)


def engine_run(model: Model, prompt: str) -> Run:
    """Our engine, driven directly."""
    generation = Generation(model, body(prompt))
    text, first, last, count = "", 0.0, 0.0, 0
    while not generation.finished:
        output = generation.step()
        if output is None:
            continue
        last = time.perf_counter()
        if not first:
            first, count = last, -len(output.tokens)
        count += len(output.tokens)
        text += output.text
    cycles = generation.statistics().cycles
    generation.close()
    return Run(text=text, tokens=count, seconds=last - first, cycles=cycles)


class DaemonContender:
    """A client of a real daemon with one worker."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.chunks = 0
        self.supervisor_cpu_s = 0.0

    def run(self, prompt: str) -> Run:
        """One request through client, supervisor and worker."""
        request = body(prompt)
        before = self._cpu_seconds()
        generation = self._client.generate(
            "bench",
            messages=request.messages,
            max_tokens=request.max_tokens,
            ignore_eos=True,
            speculation="strict",
        )
        text, first, last, count = "", 0.0, 0.0, 0
        for chunk in generation:
            last = time.perf_counter()
            if not first:
                first, count = last, -len(chunk.tokens)
            count += len(chunk.tokens)
            text += chunk.text
            self.chunks += 1
        self.supervisor_cpu_s += self._cpu_seconds() - before
        cycles = generation.wait().stats.cycles
        return Run(text=text, tokens=count, seconds=last - first, cycles=cycles)

    def _cpu_seconds(self) -> float:
        """Processor time in which the supervisor's loop handled messages."""
        return self._client.status().counters["busy_cpu_s"]


@contextmanager
def daemon_contender() -> Generator[DaemonContender]:
    """A daemon that has the pair loaded."""
    with (
        tempfile.TemporaryDirectory(prefix="dfd", dir="/tmp") as folder,
        running_daemon(Path(folder), {"bench": PAIR}) as client,
    ):
        client.spawn("bench")
        yield DaemonContender(client)


def _without_end(tokenizer: Any) -> Any:
    """The tokenizer with no end-of-text token, so that every contender decodes as many tokens."""
    endless = type(tokenizer)(tokenizer._tokenizer)  # noqa: SLF001 - it has no public copy
    endless._eos_token_ids = set[int]()  # noqa: SLF001
    return endless
