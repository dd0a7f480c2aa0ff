"""One request: where it ends, what it says about itself, and that others do not change it."""

from __future__ import annotations

import dataclasses
import gc
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import GenerateBody, LoadBody, Sampling
from dflashd.worker.decoding.decoder import BlockDecoder
from dflashd.worker.engine.border import Statistics
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.model import Model

from ..chi_square import alike, fits
from ..tiny import MASK_TOKEN_ID, make_draft
from ..unit.reference_filter import filtered
from .block_run import ScriptedDrafter, plain_tokens
from .families import MEMBERS, SHAPE, Family, make_member, make_members_draft
from .held_memory import held_bytes

pytestmark = pytest.mark.slow

PROMPT = (77, 40, 12)
CHUNK_TOKENS = 8
BLOCK_TOKENS = 6

Speculation = Literal["auto", "strict", "off"]


@dataclass(frozen=True, slots=True)
class Result:
    """All that a generation gave."""

    tokens: list[int]
    text: str
    statistics: Statistics


def load(folder: Path, *, draft: bool, **fields: Any) -> Model:
    body = LoadBody(
        block_tokens=BLOCK_TOKENS,
        target=str(folder / "target"),
        draft=str(folder / "draft") if draft else None,
        prefill_chunk_tokens=CHUNK_TOKENS,
        **fields,
    )
    return load_model("tiny", body, lambda *_: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    make_member(folder / "target", MEMBERS["llama"])
    make_members_draft(folder / "draft", MEMBERS["llama"])
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    """A pair whose draft knows nothing."""
    return load(folder, draft=True)


@pytest.fixture(scope="module")
def truth(model: Model) -> list[int]:
    """The prompt and its greedy continuation."""
    return plain_tokens(model, list(PROMPT), 120)


@pytest.fixture
def clairvoyant(model: Model, truth: list[int]) -> Model:
    """The pair with a draft that is always right: every cycle commits a whole block."""
    return dataclasses.replace(model, drafter=ScriptedDrafter(model, truth, spoil=False))


def request(speculation: Speculation = "auto", **fields: Any) -> GenerateBody:
    given: dict[str, Any] = {"tokens": PROMPT, "max_tokens": 40, "ignore_eos": True} | fields
    return GenerateBody(speculation=speculation, **given)


def result(model: Model, body: GenerateBody) -> Result:
    return finished(Generation(model, body))


def finished(generation: Generation) -> Result:
    tokens: list[int] = []
    text = ""
    while not generation.finished:
        output = generation.step()
        tokens += output.tokens if output else ()
        text += output.text if output else ""
    statistics = generation.statistics()
    generation.close()
    assert statistics.generated_tokens == len(tokens)
    return Result(tokens, text, statistics)


@pytest.mark.parametrize("at", range(1, 15))
def test_eos_inside_a_run_cuts_there(clairvoyant: Model, truth: list[int], at: int) -> None:
    """The end-of-text token ends the request wherever in a block it stands; none is shown."""
    eos = truth[len(PROMPT) + at]
    expected = truth[len(PROMPT) :][: truth[len(PROMPT) :].index(eos)]
    ending = dataclasses.replace(clairvoyant, eos_token_ids=frozenset({eos}))
    for speculation in ("strict", "off"):
        found = result(ending, request(speculation, ignore_eos=False))
        assert found.tokens == expected
        assert found.statistics.finish_reason == "stop"
        assert found.statistics.stop_string is None


def test_eos_as_first_token(clairvoyant: Model, truth: list[int]) -> None:
    """A request whose very first token ends it gives nothing, without a decode cycle."""
    ending = dataclasses.replace(clairvoyant, eos_token_ids=frozenset({truth[len(PROMPT)]}))
    found = result(ending, request(ignore_eos=False))
    assert (found.tokens, found.text) == ([], "")
    assert (found.statistics.finish_reason, found.statistics.cycles) == ("stop", 0)
    assert found.statistics.acceptance_length_tokens == 0.0


def test_any_of_several_eos_tokens_ends(clairvoyant: Model, truth: list[int]) -> None:
    """A model with several end-of-text tokens ends at the first of them."""
    texts = truth[len(PROMPT) :]
    ending = dataclasses.replace(clairvoyant, eos_token_ids=frozenset({texts[20], texts[9]}))
    first = min(texts.index(texts[20]), texts.index(texts[9]))
    assert result(ending, request(ignore_eos=False)).tokens == texts[:first]


def test_ignore_eos(clairvoyant: Model, truth: list[int]) -> None:
    """ignore_eos goes on behind the end-of-text token, up to the limit."""
    ending = dataclasses.replace(clairvoyant, eos_token_ids=frozenset(truth))
    assert result(ending, request(ignore_eos=False)).tokens == []
    found = result(ending, request())
    assert found.tokens == truth[len(PROMPT) : len(PROMPT) + 40]
    assert found.statistics.finish_reason == "length"


@pytest.mark.parametrize("start", [0, 3, 8, 13, 21, 34])
@pytest.mark.parametrize("length", [1, 4])
def test_stop_strings_cut_alike(clairvoyant: Model, start: int, length: int) -> None:
    """A stop string ends a drafted request where it ends a plain one: same text, same tokens."""
    whole = result(clairvoyant, request("off")).text
    stop = whole[start : start + length]
    assert len(stop) == length
    plain = result(clairvoyant, request("off", stop=(stop, "never met")))
    drafted = result(clairvoyant, request("strict", stop=(stop, "never met")))
    assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens)
    assert plain.text == whole[: whole.index(stop)]
    for found in (plain, drafted):
        assert found.statistics.finish_reason == "stop"
        assert found.statistics.stop_string == stop


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_max_tokens_is_exact(clairvoyant: Model, count: int, temperature: float) -> None:
    """max_tokens is met to the token, whatever the block length, greedy or sampled."""
    wanted = request(max_tokens=count, sampling=Sampling(temperature=temperature, seed=1))
    model = clairvoyant
    if temperature:
        assert clairvoyant.drafter is not None
        model = dataclasses.replace(model, drafter=_plain_drafter(clairvoyant))
    found = result(model, wanted)
    assert len(found.tokens) == count
    assert found.statistics.finish_reason == "length"


def _plain_drafter(model: Model) -> Any:
    """The pair's real drafter in place of a scripted one, which cannot sample."""
    from dflashd.worker.decoding.drafting import Drafter

    assert model.drafter is not None
    return Drafter(model.target, model.drafter.draft)


@pytest.mark.parametrize("draft", [True, False])
def test_the_context_limits(folder: Path, draft: bool) -> None:
    """Generation ends where the context does; a prompt that leaves no room is refused."""
    model = load(folder, draft=draft, context_tokens=20)
    for prompt, expected in ((15, 5), (19, 1), (3, 17)):
        found = result(model, request(tokens=(77,) * prompt))
        assert len(found.tokens) == expected
        assert found.statistics.finish_reason == "length"
    for prompt in (20, 21, 500):
        with pytest.raises(DflashError) as caught:
            Generation(model, request(tokens=(77,) * prompt))
        assert caught.value.code == ErrorCode.bad_request
        assert str(prompt) in caught.value.message
        assert "context of 20" in caught.value.message


def test_a_token_beyond_the_vocabulary_is_refused(model: Model) -> None:
    """A token id the model does not have is a bad request, not a read of foreign memory."""
    with pytest.raises(DflashError) as caught:
        Generation(model, request(tokens=(5, 300)))
    assert caught.value.code == ErrorCode.bad_request


def test_defaults_of_the_model(folder: Path) -> None:
    """What a request leaves open is what the model's configuration says."""
    sampling = Sampling(temperature=1.0, seed=3)
    model = load(folder, draft=True, max_tokens=9, sampling=sampling)
    by_default = result(model, GenerateBody(tokens=PROMPT, ignore_eos=True))
    assert len(by_default.tokens) == 9
    assert by_default == dataclasses.replace(
        result(model, request(max_tokens=9, sampling=sampling)), statistics=by_default.statistics
    )


def test_plain_says_why(folder: Path, model: Model) -> None:
    """A plain answer says why it is plain; strict refuses it and says the same."""
    alone = load(folder, draft=False)
    statistics = result(alone, request(max_tokens=3)).statistics
    assert (statistics.engine, statistics.block_tokens) == ("plain", 1)
    assert statistics.engine_reason == "no draft is configured for this model"
    with pytest.raises(DflashError) as caught:
        Generation(alone, request("strict"))
    assert caught.value.code == ErrorCode.unsupported
    assert "no draft is configured" in caught.value.message
    statistics = result(model, request("off", max_tokens=3)).statistics
    assert statistics.engine == "plain"
    assert "asked for speculation off" in statistics.engine_reason
    for speculation in ("auto", "strict"):
        statistics = result(model, request(speculation, max_tokens=3)).statistics
        assert (statistics.engine, statistics.engine_reason) == ("dflash", "")


@pytest.mark.parametrize("length", [2, 3, BLOCK_TOKENS])
def test_a_request_may_draft_shorter_blocks(
    clairvoyant: Model, truth: list[int], length: int
) -> None:
    """``block_tokens`` is the longest run a cycle commits; the text stays the target's own."""
    found = result(clairvoyant, request(block_tokens=length))
    assert found.tokens == truth[len(PROMPT) :][:40]
    assert found.statistics.block_tokens == length
    assert length - 1 < found.statistics.acceptance_length_tokens <= length


def test_a_longer_block_than_the_draft_knows_is_refused(model: Model) -> None:
    """What the draft was not made for is an error that names the limit, never another length."""
    with pytest.raises(DflashError, match=f"at most {model.block_tokens_limit}") as caught:
        Generation(model, request(block_tokens=64))
    assert caught.value.code == ErrorCode.bad_request


def test_statistics_add_up(clairvoyant: Model) -> None:
    """Tokens, cycles and acceptance length agree with each other, drafted and plain."""
    drafted = result(clairvoyant, request(max_tokens=61)).statistics
    assert drafted.prompt_tokens == len(PROMPT)
    assert drafted.cached_tokens == 0
    assert drafted.block_tokens == BLOCK_TOKENS
    assert drafted.generated_tokens == 61
    assert drafted.cycles == 10
    assert drafted.acceptance_length_tokens == 6.0
    plain = result(clairvoyant, request("off", max_tokens=61)).statistics
    assert (plain.cycles, plain.acceptance_length_tokens) == (60, 1.0)
    for statistics in (drafted, plain):
        assert statistics.prefill_ms > 0
        assert statistics.decode_ms > 0


def test_steps_tell_their_phase(model: Model) -> None:
    """A prompt of several chunks is that many prefill steps, the last of which gives a token."""
    generation = Generation(model, request(tokens=(77,) * (2 * CHUNK_TOKENS + 1), max_tokens=2))
    for _ in range(2):
        assert generation.phase == "prefill"
        assert generation.step() is None
    assert generation.phase == "prefill"
    output = generation.step()
    assert output is not None
    assert len(output.tokens) == 1
    assert generation.phase == "decode"
    generation.step()
    assert generation.finished
    with pytest.raises(RuntimeError):
        generation.step()


REQUESTS = [  # none shares its tokens with another
    request(),
    request("off", tokens=tuple(range(5, 30))),
    request(sampling=Sampling(temperature=1.0, seed=5)),
    request("off", sampling=Sampling(temperature=0.8, top_p=0.9, seed=6)),
    request(tokens=tuple(range(40, 57)), sampling=Sampling(temperature=1.2, top_k=20, seed=7)),
    request(sampling=Sampling(temperature=1.0, seed=8)),
]


def test_interleaved_requests_equal_solo_ones(model: Model) -> None:
    """Step by step in any order, greedy or sampled, drafted or plain, each gets its solo result."""
    solo = [result(model, body) for body in REQUESTS]
    assert len({tuple(one.tokens) for one in solo}) == len(REQUESTS)
    random = np.random.default_rng(2)
    generations = [Generation(model, body) for body in REQUESTS]
    tokens: list[list[int]] = [[] for _ in REQUESTS]
    texts = ["" for _ in REQUESTS]
    while running := [i for i, generation in enumerate(generations) if not generation.finished]:
        chosen = int(random.choice(running))
        mx.random.seed(int(random.integers(1000)))
        output = generations[chosen].step()
        if output:
            tokens[chosen] += output.tokens
            texts[chosen] += output.text
    assert tokens == [one.tokens for one in solo]
    assert texts == [one.text for one in solo]


def test_a_seed_repeats_and_another_differs(model: Model) -> None:
    """The same seed gives the same text again, another seed another one."""

    def sampled(seed: int | None) -> list[int]:
        return result(model, request(sampling=Sampling(temperature=1.0, seed=seed))).tokens

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in (1, 2, None, None)}) == 4


VOCAB = 6
FEW = Family(model_type="llama", extra={"vocab_size": VOCAB, "num_hidden_layers": 1}, seed=3)
FEW_SHAPE = dataclasses.replace(SHAPE, layers=1)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A pair over six tokens, so that whole continuations can be counted."""
    folder = tmp_path_factory.mktemp("few")
    make_member(folder / "target", FEW)
    make_draft(folder / "draft", FEW_SHAPE, layers=1, block_tokens=3, target_layer_ids=(0,))
    file = folder / "draft" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": VOCAB}))
    assert MASK_TOKEN_ID < VOCAB
    return load(folder, draft=True)


def joint_probabilities(model: Model, prompt: tuple[int, ...], sampling: Sampling) -> Any:
    """Of the first three tokens [V, V, V], from one pass per length over all beginnings."""
    target: Any = model.target
    joint = np.ones(())
    for length in range(3):
        starts = [[*prompt, *start] for start in product(range(VOCAB), repeat=length)]
        logits = np.array(target._model(mx.array(starts))[:, -1], np.float64)
        rows = np.stack([filtered(row, sampling) for row in logits])
        joint = joint[..., None] * rows.reshape((VOCAB,) * (length + 1))
    return joint


def joint_counts(
    model: Model, speculation: Speculation, sampling: dict[str, Any], seeds: range
) -> tuple[NDArray[np.int64], float]:
    """How often each continuation by three tokens came, and the mean acceptance length."""
    counts = np.zeros((VOCAB,) * 3, np.int64)
    committed = 0.0
    for seed in seeds:
        body = request(
            speculation, tokens=(1, 4), max_tokens=4, sampling=Sampling(seed=seed, **sampling)
        )
        generation = Generation(model, body)
        tokens: list[int] = []
        while len(tokens) < 3:
            output = generation.step()
            tokens += output.tokens if output else ()
        counts[tuple(tokens[:3])] += 1
        committed += generation.statistics().acceptance_length_tokens
        generation.close()
    return counts, committed / len(seeds)


@pytest.mark.parametrize(
    ("sampling", "seeds"),
    [
        ({"temperature": 2.5}, 500),
        ({"temperature": 2.0, "top_k": 4, "top_p": 0.9, "min_p": 0.02}, 300),
    ],
    ids=str,
)
def test_drafted_text_has_the_plain_distribution(
    few: Model, sampling: dict[str, Any], seeds: int
) -> None:
    """Over many seeds the first three tokens are jointly distributed as plain decoding's are.

    Both are also compared with the probabilities that the model itself gives.
    """
    drafted, acceptance = joint_counts(few, "strict", sampling, range(seeds))
    plain, _ = joint_counts(few, "off", sampling, range(seeds, seeds + 300))
    assert 1.2 < acceptance < 2.8, "the draft must be neither useless nor perfect"
    exact = joint_probabilities(few, (1, 4), Sampling(**sampling))
    assert fits(drafted.ravel(), exact.ravel())
    assert fits(plain.ravel(), exact.ravel())
    assert alike(drafted.ravel(), plain.ravel())
    for others in ((1, 2), (0, 2), (0, 1)):
        assert fits(drafted.sum(axis=others), exact.sum(axis=others))


def held(model: Model, body: GenerateBody, steps: int) -> tuple[Generation, int]:
    generation = Generation(model, body)
    for _ in range(steps):
        generation.step()
    return generation, mx.get_active_memory()


@pytest.mark.parametrize("speculation", ["strict", "off"])
def test_a_closed_generation_frees_its_caches(model: Model, speculation: Speculation) -> None:
    """Closing gives all of a request's memory back at once, in any phase; twice is once."""
    held_bytes()
    gc.disable()
    try:
        for steps in (1, 2, 3, 10, 30):
            before = mx.get_active_memory()
            body = request(speculation, tokens=tuple(range(5, 25)))
            generation, during = held(model, body, steps)
            assert during > before
            generation.close()
            generation.close()
            mx.synchronize()  # plain decoding computes one token ahead
            assert mx.get_active_memory() <= before
    finally:
        gc.enable()


def test_memory_is_the_caches(model: Model) -> None:
    """Through a long generation a request holds its caches, and no trail of old arrays."""
    before = held_bytes()
    generation = Generation(model, request(max_tokens=300))
    while not generation.finished:
        generation.step()
    decoder = generation._decoder
    assert isinstance(decoder, BlockDecoder)
    caches = sum(cache.nbytes for cache in [*decoder._caches, *decoder._draft_caches])
    mx.synchronize()
    assert mx.get_active_memory() - before < caches + 100_000
    generation.close()


def test_a_failed_step_leaves_the_model_usable(model: Model, truth: list[int]) -> None:
    """A request whose device fails in the middle of a pass does not touch the next one."""
    broken = Generation(model, request())
    broken.step()
    decoder: Any = broken._decoder
    decoder._caches[1] = None
    classes = [type(layer) for layer in model.target.layers]
    decoder._caches[1] = FailingCache()
    with pytest.raises(RuntimeError, match="the device failed"):
        broken.step()
    broken.close()
    assert [type(layer) for layer in model.target.layers] == classes
    assert result(model, request()).tokens == truth[len(PROMPT) : len(PROMPT) + 40]


class FailingCache:
    """A cache of a device that fails."""

    offset = 3

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        raise RuntimeError("the device failed")
