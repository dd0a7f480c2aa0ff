"""Every family that can be drafted for decodes in blocks what it decodes plainly."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model as load_stock

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import LoadBody, Sampling
from dflashd.worker.checkpoints.weights import cast, parameters
from dflashd.worker.decoding.features import FeatureTap
from dflashd.worker.decoding.sampling import Sampler
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.model import Model
from dflashd.worker.hooks.instances import InstanceHooks
from dflashd.worker.targets import FAMILIES, supported_families

from .block_run import BlockRun, ScriptedDrafter, block_run, plain_tokens
from .families import (
    HYBRIDS,
    LAYER_IDS,
    MEMBERS,
    STOCK,
    VARIANTS,
    Family,
    make_member,
    make_members_draft,
)

pytestmark = pytest.mark.slow

ALL = MEMBERS | VARIANTS | HYBRIDS
CHUNK_TOKENS = 8
BLOCK_TOKENS = 6
TOKENS = 200
FIRST_TOKEN = 77
SMALLEST_GAP = 2e-4
"""Between best and second best logit: float32 passes of different shapes agree within less."""


def load(folder: Path, family: Family, draft: Path | None) -> Model:
    target = make_member(folder, family)
    load_body = LoadBody(
        block_tokens=BLOCK_TOKENS,
        target=str(target),
        draft=str(draft) if draft else None,
        prefill_chunk_tokens=CHUNK_TOKENS,
        dtype="keep" if family.quantised else "auto",
    )
    return load_model("tiny", load_body, lambda *_: None)


def logits_from_scratch(model: Model, tokens: list[int]) -> Any:
    """The model's own logits [L, V] for all tokens in one pass, without caches of ours."""
    return np.array(model.target._model(mx.array([tokens]))[0])  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class Member:
    """A loaded member with its greedy text, and one long block run over it."""

    name: str
    model: Model

    @cached_property
    def truth(self) -> list[int]:
        return plain_tokens(self.model, [FIRST_TOKEN], TOKENS + BLOCK_TOKENS)

    @cached_property
    def run(self) -> BlockRun:
        return block_run(self.model, self.truth, 1, TOKENS)


@pytest.fixture(scope="module", params=list(ALL))
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Member:
    name = str(request.param)
    folder = tmp_path_factory.mktemp("member")
    draft = make_members_draft(folder / "draft", ALL[name])
    return Member(name, load(folder / "target", ALL[name], draft))


def test_every_family_is_tried() -> None:
    """The list of supported families is the list these tests run."""
    assert {family.model_type for family in (MEMBERS | HYBRIDS).values()} == FAMILIES
    assert all(family.model_type == name for name, family in MEMBERS.items())


def test_models_with_public_drafts_have_a_tried_family() -> None:
    """Every type that the documentation names for a public model is one that these tests run."""
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    table = text.partition("Models with a public draft")[2].partition("What decides is")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("|")][2:]
    named = {name.strip(" `") for _, types in rows for name in types.split(",")}
    models = " ".join(models for models, _ in rows)
    wanted = "Llama 3.1,Qwen3,Coder,Coder-Next,Qwen3.5,Qwen3.6,Qwen3.8,Gemma 4,gpt-oss,LFM2.5"
    for model in (*wanted.split(","), "Muse-Glimmer", "Kimi K2.5"):
        assert model in models
    assert named <= {family.model_type for family in ALL.values()} & FAMILIES


def test_plain_tokens_are_the_models_own(member: Member) -> None:
    """Plain decoding gives the argmax of one pass over all; the text is varied, ties are rare."""
    truth = member.truth
    logits = logits_from_scratch(member.model, truth[:-1])
    assert logits.argmax(axis=1).tolist() == truth[1:]
    best = np.sort(logits, axis=1)[:, -2:]
    assert (best[:, 1] - best[:, 0]).min() > SMALLEST_GAP, "another seed is needed"
    assert len(set(truth)) > 25, "another seed is needed"


def test_first_logits_are_the_models_own(member: Member) -> None:
    """A prompt's last logits are the model's to the value: sampling depends on their scale."""
    target = member.model.target
    prompt = member.truth[:CHUNK_TOKENS]
    logits = np.array(target.prefill(mx.array([prompt]), target.make_caches())[0])
    np.testing.assert_allclose(
        logits, logits_from_scratch(member.model, prompt)[-1:], rtol=1e-3, atol=1e-3
    )


def test_embeddings_are_what_the_layers_get(member: Member) -> None:
    """A draft is given tokens as the target's own first layer is."""
    target, prompt, given = member.model.target, member.truth[:CHUNK_TOKENS], list[Any]()
    hooks = InstanceHooks([(target.layers[0], lambda _, args, __: given.append(args[0]))])
    with hooks.armed():
        logits_from_scratch(member.model, prompt)
    embedded = target.embed(mx.array([prompt]))
    np.testing.assert_allclose(np.array(embedded), np.array(given[0]), rtol=1e-5)


def test_blocks_decode_what_steps_decode(member: Member) -> None:
    """200 tokens decoded in blocks equal plain decoding, through every rollback length."""
    assert member.model.engine == "dflash"
    assert member.run.tokens == member.truth[1 : TOKENS + 1]
    whole = [cycle for cycle in member.run.cycles if cycle.block_tokens == BLOCK_TOKENS]
    assert {cycle.run for cycle in whole} == set(range(BLOCK_TOKENS))
    drafted = member.run.committed[: len(member.run.cycles)]
    assert drafted == [cycle.run + 1 for cycle in member.run.cycles]


def test_features_are_those_of_committed_tokens(member: Member) -> None:
    """The draft is given each committed position's layer outputs, once and in order."""
    model, features = member.model, member.run.features
    assert len(features) > TOKENS - BLOCK_TOKENS
    tap = FeatureTap(model.target.layers, LAYER_IDS)
    with tap.armed():
        logits_from_scratch(model, member.truth[: len(features)])
    np.testing.assert_allclose(features, np.array(tap.features()[0]), rtol=2e-3, atol=2e-3)


def test_features_are_layer_outputs(member: Member) -> None:
    """What a tap records in one pass is what the layers give when they are called one by one."""
    if member.name in HYBRIDS:
        return  # their layers cannot be called so; the taps are the same
    model, features = member.model, member.run.features
    trunk: Any = model.target._model.model  # pyright: ignore[reportAttributeAccessIssue]
    hidden = trunk.embed_tokens(mx.array([member.truth[: len(features)]]))
    windows = "windows" in member.name
    outputs: list[Any] = []
    for number, layer in enumerate(model.target.layers):
        length = hidden.shape[1]
        behind = mx.arange(length)[:, None] - mx.arange(length)[None]
        seen = (behind >= 0) & (behind < (8 if windows and number == 0 else length))
        hidden = layer(hidden, seen, None)
        outputs.append(np.array(hidden[0]))
    expected = np.concatenate([outputs[i] for i in LAYER_IDS], axis=-1)
    np.testing.assert_allclose(features, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("prompt_tokens", [CHUNK_TOKENS, CHUNK_TOKENS + 1, 3 * CHUNK_TOKENS - 1])
def test_prompts_at_chunk_borders(member: Member, prompt_tokens: int) -> None:
    """Prompts of one chunk, a token more and several chunks continue alike; limits are exact."""
    for count in (1, 2, 15):
        run = block_run(member.model, member.truth, prompt_tokens, count)
        assert run.tokens == member.truth[prompt_tokens : prompt_tokens + count]
        left = count - 1
        for cycle, committed in zip(run.cycles, run.committed, strict=False):
            assert cycle.block_tokens == min(BLOCK_TOKENS, left)
            left -= committed


def test_single_steps_between_blocks(member: Member) -> None:
    """Steps of one token between blocks lose no features: the next block gets all of them."""
    truth = member.truth
    drafter = ScriptedDrafter(member.model, truth)
    scripted = dataclasses.replace(member.model, drafter=drafter)
    decoder = scripted.decoder("dflash", Sampler(Sampling(), Sampling()))
    tokens = [truth[0], decoder.first(truth[:1])]
    for limit in (1, 6, 1, 1, 1, 6, 6, 1, 2, 1, 6):
        committed = decoder.cycle(tokens[-1], limit)
        assert 1 <= len(committed) <= limit
        tokens += committed
    assert tokens == truth[: len(tokens)]
    given = np.concatenate(drafter.recording.given)
    np.testing.assert_allclose(given, member.run.features[: len(given)], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("prompt_tokens", [CHUNK_TOKENS, 2 * CHUNK_TOKENS + 5])
def test_blocks_go_on_behind_a_restored_state(member: Member, prompt_tokens: int) -> None:
    """State captured between any two cycles and restored serves further blocks and rollbacks."""
    truth = member.truth
    drafter = ScriptedDrafter(member.model, truth, seed=prompt_tokens)
    scripted = dataclasses.replace(member.model, drafter=drafter)

    def decoder() -> Any:
        return scripted.decoder("dflash", Sampler(Sampling(), Sampling()))

    live = decoder()
    for start in range(0, prompt_tokens - CHUNK_TOKENS, CHUNK_TOKENS):
        live.prefill(truth[start : start + CHUNK_TOKENS])
    tokens = truth[:prompt_tokens]
    tokens.append(live.first(truth[live.rows : prompt_tokens]))
    for limit in (6, 6, 1, 6, 6, 6, 6, 1, 1, 6, 6, 6):
        tokens += live.cycle(tokens[-1], limit)
        target, draft = live.capture(live.rows)
        restored = decoder()
        restored.restore(target, draft, live.rows)
        live = restored
    assert tokens == truth[: len(tokens)]
    assert live.rows == len(tokens) - 1


@pytest.mark.parametrize(
    ("name", "kept"), [("qwen3_5", "A_log"), ("kimi_k25", "e_score_correction_bias")]
)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_what_mlx_lm_never_casts_is_not_cast(
    name: str, kept: str, dtype: mx.Dtype, tmp_path: Path
) -> None:
    """In half precision decays and router biases stay float32; all else is cast."""
    module = load_stock(make_member(tmp_path, HYBRIDS[name]), lazy=True)[0]
    cast(module, dtype)
    found = {path: array.dtype for path, array in parameters(module)}
    full = {path for path, dtype in found.items() if dtype == mx.float32}
    assert {path.rpartition(".")[2] for path in full} == {kept}
    assert {found[path] for path in found.keys() - full} == {dtype}


def test_half_precision_decodes(tmp_path: Path) -> None:
    """A recurrent target whose decays are float32 among bfloat16 decodes."""
    target = make_member(tmp_path, HYBRIDS["qwen3_5"])
    model = load_model("tiny", LoadBody(target=str(target), dtype="bfloat16"), lambda *_: None)
    assert model.dtype == "bfloat16"
    assert len(plain_tokens(model, [FIRST_TOKEN], 5)) == 6


def test_mxfp4_experts_are_used_as_they_are(tmp_path: Path) -> None:
    """A checkpoint with packed experts says, plainly and in blocks, what mlx-lm makes of it."""
    family = HYBRIDS["gpt_oss in MXFP4"]
    model = load(tmp_path / "t", family, make_members_draft(tmp_path / "d", family))
    assert model.dtype == "as stored"
    reference: Any = load_stock(tmp_path / "t")[0]
    experts = reference.model.layers[0].mlp.experts.gate_proj
    assert (experts.mode, experts.scales.dtype) == ("mxfp4", mx.uint8)
    truth = plain_tokens(model, [FIRST_TOKEN], 60)
    logits = np.array(reference(mx.array([truth]))[0])
    assert truth[1:] == logits.argmax(axis=-1)[:-1].tolist()
    assert block_run(model, truth + [0] * BLOCK_TOKENS, 1, 60).tokens == truth[1:]
    dense = load_model("dense", LoadBody(target=str(tmp_path / "t")), lambda *_: None)
    assert dense.dtype == "float32"
    assert plain_tokens(dense, [FIRST_TOKEN], 60) == truth


@pytest.mark.parametrize("name", STOCK)
def test_other_models_decode_plainly(name: str, tmp_path: Path) -> None:
    """A model with other caches decodes plainly, over chunk borders, as one pass says."""
    family = STOCK[name]
    model = load(tmp_path, family, None)
    assert model.engine == "plain"
    truth = plain_tokens(model, [FIRST_TOKEN], 50)
    assert logits_from_scratch(model, truth[:-1]).argmax(axis=1).tolist() == truth[1:]
    assert plain_tokens(model, truth[:20], 10) == truth[:30]


@pytest.mark.parametrize("name", STOCK)
def test_other_models_are_refused_a_draft(name: str, tmp_path: Path) -> None:
    """A draft for a model that cannot be rolled back is refused, with what is supported."""
    family = STOCK[name]
    with pytest.raises(DflashError) as caught:
        load(tmp_path / "target", family, make_members_draft(tmp_path / "draft", family))
    assert caught.value.code == ErrorCode.unsupported
    assert family.model_type in caught.value.message
    assert supported_families() in caught.value.message
