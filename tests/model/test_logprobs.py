"""The log-probabilities that are told are those of the target, verified in blocks or not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflashd.protocol.messages import GenerateBody, LoadBody, Logprobs, Sampling
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.model import Model

from .families import MEMBERS, make_member, make_members_draft

PROMPT = (77, 40, 12)
TOP = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder: Path = tmp_path_factory.mktemp("pair")
    make_member(folder / "target", MEMBERS["llama"])
    make_members_draft(folder / "draft", MEMBERS["llama"])
    body = LoadBody(target=str(folder / "target"), draft=str(folder / "draft"), block_tokens=6)
    return load_model("tiny", body, lambda *_: None)


def run(model: Model, **fields: Any) -> tuple[list[int], list[Logprobs]]:
    body = GenerateBody(tokens=PROMPT, max_tokens=24, ignore_eos=True, **fields)
    generation = Generation(model, body)
    tokens: list[int] = []
    told: list[Logprobs] = []
    while not generation.finished:
        chunk = generation.step()
        if chunk is not None:
            tokens += chunk.tokens
            told += chunk.logprobs
    generation.close()
    return tokens, told


def reference(model: Model, tokens: list[int]) -> Any:
    """Log-probabilities [n, V] at the place of each token, from one pass over all of them."""
    sequence = [*PROMPT, *tokens]
    logits = model.target.verify(mx.array([sequence]), model.target.make_caches())[0]
    rows = logits[len(PROMPT) - 1 : -1].astype(mx.float32)
    return np.array(rows - mx.logsumexp(rows, axis=-1, keepdims=True))


@pytest.mark.parametrize("speculation", ["strict", "off"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=3)])
def test_logprobs_are_the_targets_own(model: Model, speculation: Any, sampling: Sampling):
    """Each emitted token comes with its log-probability and the likeliest ones, in order."""
    tokens, told = run(model, speculation=speculation, sampling=sampling, logprobs=TOP)
    expected = reference(model, tokens)
    assert [each.token for each in told] == tokens
    for row, each in zip(expected, told, strict=True):
        assert each.logprob == pytest.approx(float(row[each.token]), abs=1e-4)
        assert len(each.top) == TOP
        values = [other.logprob for other in each.top]
        assert values == pytest.approx(sorted(row, reverse=True)[:TOP], abs=1e-4)
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-6
    written = b"".join(each.written for each in told)
    assert written.decode(errors="replace") == model.tokenizer.decode(tokens)


def test_logprobs_are_told_when_asked_only(model: Model):
    """Nobody pays for what nobody asked; 0 asks for the token's own alone."""
    assert run(model)[1] == []
    assert {each.top for each in run(model, logprobs=0)[1]} == {()}
