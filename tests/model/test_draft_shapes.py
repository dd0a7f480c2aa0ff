"""Drafts of the later shapes, loaded with the target they are for, change no text."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from dflashd.protocol.messages import LoadBody, Sampling
from dflashd.worker.checkpoints.draft_config import draft_config
from dflashd.worker.decoding.acceptance import Proposal
from dflashd.worker.decoding.drafting import Drafter
from dflashd.worker.decoding.sampling import Sampler
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.model import Model

from ..tiny import MASK_TOKEN_ID, VOCAB_TOKENS
from ..unit.reference_draft import random_weights
from .block_run import body, finish, plain_tokens
from .families import HYBRIDS, SHAPE, make_member

pytestmark = pytest.mark.slow

DFLASH: dict[str, Any] = {
    "block_size": 4,
    "mask_token_id": MASK_TOKEN_ID,
    "target_layer_ids": [1, 0],
    "conv_group_size": 8,
    "conv_kernel_size": 2,
    "selector_rank": 6,
    "selector_top_k": 5,
    "output_multiplier": 0.196,
    "final_logit_softcapping": 20.0,
    "input_embedding_scale": 1.0,
}
NETWORK: dict[str, Any] = {
    "hidden_size": SHAPE.hidden,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 16,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "is_causal": False,
}
VERSION_2 = NETWORK | {
    "architectures": ["DFlash2DraftModel"],
    "vocab_size": VOCAB_TOKENS,
    "num_target_layers": SHAPE.layers,
    "dflash_config": DFLASH,
}
ASSISTANT = NETWORK | DFLASH | {"architectures": ["MuseGlimmerAssistantModel"]}
ASSISTANTS_NAMES = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
PROMPT = [77]
"""What follows is free of near ties: ``test_targets`` looks at it."""


PLAIN = NETWORK | {
    "architectures": ["DFlashDraftModel"],
    "vocab_size": VOCAB_TOKENS,
    "num_target_layers": SHAPE.layers,
    "dflash_config": {name: DFLASH[name] for name in ("mask_token_id", "target_layer_ids")},
    "block_size": DFLASH["block_size"],
}
PACKED = {"quantization": {"group_size": 32, "bits": 4}}
SHAPES = {
    "version 2": VERSION_2,
    "assistant": ASSISTANT,
    "version 1, quantised": PLAIN | PACKED,
    "version 2, quantised": VERSION_2 | PACKED,
}
CHUNK_TOKENS = 8
TOKENS = 205
BLOCK_TOKENS = int(DFLASH["block_size"])


def make_draft(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shape = replace(draft_config(config, "here"), vocab_size=VOCAB_TOKENS)
    arrays = {name: mx.array(a.astype(np.float32)) for name, a in random_weights(shape, 1).items()}
    if config["architectures"] == ASSISTANT["architectures"]:
        for ours, theirs in ASSISTANTS_NAMES.items():
            arrays[f"{theirs}weight"] = arrays.pop(f"{ours}weight")
    if "quantization" in config:
        arrays = packed(arrays)
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    return folder


def packed(arrays: dict[str, mx.array]) -> dict[str, mx.array]:
    """The projections as mlx packs them."""
    made = dict[str, mx.array]()
    for name, array in arrays.items():
        layer, _, part = name.rpartition(".")
        if layer.endswith(("_proj", "fc")) and array.shape[-1] % 32 == 0:
            weight, scales, biases = mx.quantize(array, group_size=32, bits=4)
            made |= {name: weight, f"{layer}.scales": scales, f"{layer}.biases": biases}
        else:
            made[f"{layer}.{part}" if layer else name] = array
    return made


@dataclass(frozen=True)
class Pair:
    """A target with a draft of one shape, and the target's own greedy text."""

    model: Model
    truth: list[int]


@pytest.fixture(scope="module", params=["muse_glimmer", "qwen3_5"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A target whose windows wrap all the time, or one whose layers are recurrent."""
    family = HYBRIDS[str(request.param)]
    return family, make_member(tmp_path_factory.mktemp("target") / "target", family)


@pytest.fixture(scope="module", params=list(SHAPES))
def pair(
    request: pytest.FixtureRequest, target: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    family, folder = target
    config = SHAPES[str(request.param)]
    deep = replace_layers(config, family.extra.get("num_hidden_layers", SHAPE.layers))
    draft = make_draft(tmp_path_factory.mktemp("draft") / "draft", deep)
    load_body = LoadBody(
        target=str(folder),
        draft=str(draft),
        prefill_chunk_tokens=CHUNK_TOKENS,
        dtype="keep" if "quantised" in str(request.param) else "auto",
    )
    model = load_model("m", load_body, lambda *_: None)
    assert (model.engine, model.block_tokens) == ("dflash", BLOCK_TOKENS)
    drafter: Any = model.drafter
    assert isinstance(drafter.draft.fc, nn.QuantizedLinear) == ("quantised" in str(request.param))
    yield Pair(model, plain_tokens(model, PROMPT, TOKENS))
    model.close()


class SpoiltDrafter(Drafter):
    """The real draft at work, whose proposals give way to what is right, up to a random place."""

    def __init__(self, model: Model, truth: list[int], seed: int) -> None:
        assert model.drafter is not None
        super().__init__(model.target, model.drafter.draft)
        self.runs: Counter[int] = Counter()
        self._truth = truth
        self._random = random.Random(seed)

    def propose(
        self,
        anchor: int,
        block_tokens: int,
        features: mx.array | None,
        caches: list[KVCache],
        sampler: Sampler,
    ) -> Proposal:
        proposal = super().propose(anchor, block_tokens, features, caches, sampler)
        own = [int(token) for token in np.array(proposal.tokens)]
        at = caches[0].offset
        assert self._truth[at] == anchor, "the context does not end before the anchor"
        assert len(own) == block_tokens - 1
        run = self._random.randint(0, len(own))
        right = self._truth[at + 1 : at + 1 + run]
        wrong = [(token + 1) % VOCAB_TOKENS for token in self._truth[at + 1 + run : at + 2 + run]]
        self.runs[run] += 1
        return Proposal(mx.array((right + wrong + own[run + 1 :])[: len(own)]))


def test_hundreds_of_tokens_equal_plain_text(pair: Pair) -> None:
    """Drafts of every shape, wrong at random places, over chunk borders, wraps of the window and
    every rollback length: the greedy text is the plain text.
    """
    for prompt_tokens, count in ((1, 200), (CHUNK_TOKENS, 30), (2 * CHUNK_TOKENS + 5, 30)):
        drafter = SpoiltDrafter(pair.model, pair.truth, prompt_tokens)
        scripted = replace(pair.model, drafter=drafter)
        generation = Generation(scripted, body(pair.truth[:prompt_tokens], count))
        assert finish(generation) == pair.truth[prompt_tokens : prompt_tokens + count]
        assert set(drafter.runs) == set(range(BLOCK_TOKENS))
        assert generation.statistics().engine == "dflash"


def test_text_goes_on_behind_restored_states(pair: Pair) -> None:
    """State captured between two cycles, the draft's context included, serves the next ones."""
    drafter = SpoiltDrafter(pair.model, pair.truth, 3)
    scripted = replace(pair.model, drafter=drafter)

    def decoder() -> Any:
        return scripted.decoder("dflash", Sampler(Sampling(), Sampling()))

    live = decoder()
    live.prefill(pair.truth[:CHUNK_TOKENS])
    tokens = pair.truth[: CHUNK_TOKENS + 3]
    tokens.append(live.first(tokens[CHUNK_TOKENS:]))
    while len(tokens) < 100:
        tokens += live.cycle(tokens[-1], BLOCK_TOKENS)
        if len(drafter.runs) and sum(drafter.runs.values()) % 3 == 0:
            target, draft = live.capture(live.rows)
            live = decoder()
            live.restore(target, draft, len(tokens) - 1)
    assert tokens == pair.truth[: len(tokens)]
    assert live.rows == len(tokens) - 1


def test_the_drafts_own_proposals_change_no_text(pair: Pair) -> None:
    """Greedy text is the target's own; sampled requests run, and repeat with their seed."""
    generation = Generation(pair.model, body(PROMPT, 40))
    assert finish(generation) == pair.truth[len(PROMPT) : len(PROMPT) + 40]
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    once, again = (Generation(pair.model, body(PROMPT, 20, sampling=sampling)) for _ in range(2))
    assert finish(once) == finish(again)


def replace_layers(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same draft for a deeper target, where it tells the depth."""
    return config | {"num_target_layers": layers} if "num_target_layers" in config else config
