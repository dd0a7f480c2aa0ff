"""A hit gives what a cold run in the same chunking gives, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflashd.protocol.messages import CacheSettings, GenerateBody, LoadBody, Sampling
from dflashd.worker.cache.open import OpenCache
from dflashd.worker.decoding.decoder import BlockDecoder, PlainDecoder
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.mlx_engine import MlxEngine, MlxModel

from ..tiny import make_draft, make_target
from . import whole_load
from .families import HYBRIDS, STOCK, make_member

pytestmark = pytest.mark.slow

CHUNK = 32
PROMPT = tuple((37 * n) % 290 + 5 for n in range(150))
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
OFF = OpenCache(manager=None, cuttable=True)


@dataclass
class Answer:
    """What a request gave."""

    tokens: list[int]
    logits: mx.array
    hit: str
    cached: int
    reason: str


def loaded(body: LoadBody) -> MlxModel:
    model = whole_load.load(MlxEngine(), "m", body)
    assert isinstance(model, MlxModel)
    return model


def load(folder: Path, *, draft: bool = True, target: str = "t", **cache: object) -> MlxModel:
    body = LoadBody(
        target=str(folder / target),
        draft=str(folder / "d") if draft else None,
        prefill_chunk_tokens=CHUNK,
        cache=CacheSettings(**cache),  # type: ignore[arg-type]
    )
    return loaded(body)


def answer(
    model: MlxModel,
    tokens: tuple[int, ...],
    *,
    count: int = 20,
    cache: OpenCache | None = None,
    **options: object,
) -> Answer:
    """Run a request to its end."""
    body = GenerateBody(tokens=tokens, max_tokens=count, ignore_eos=True, **options)  # type: ignore[arg-type]
    generation = Generation(model.model, body, cache or model.cache)
    decoder = generation._decoder
    assert decoder is not None
    given: list[int] = []
    while not generation.finished:
        given += ((output := generation.step()) and output.tokens) or ()
    logits = decoder.last_logits
    assert logits is not None
    statistics = generation.statistics()
    generation.close()
    return Answer(
        given, logits, statistics.cache_hit, statistics.cached_tokens, statistics.cache_miss_reason
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_target(tmp_path / "t")
    make_draft(tmp_path / "d")
    return tmp_path


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("speculation", ["auto", "off"])
def test_exact_hit_repeats_the_cold_run(folder: Path, sampling: Sampling, speculation: str) -> None:
    """The same prompt again: same logits to the bit, same text, and no prompt row computed."""
    model = load(folder)
    cold, warm = (
        answer(model, PROMPT, sampling=sampling, speculation=speculation) for _ in range(2)
    )
    assert (cold.hit, cold.reason) == ("miss", "cold")
    assert (warm.hit, warm.cached) == ("l1_exact", len(PROMPT))
    assert mx.array_equal(cold.logits, warm.logits)
    assert cold.tokens == warm.tokens


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("speculation", ["auto", "off"])
@pytest.mark.parametrize("shared", [33, 149])
def test_aligned_hit_equals_any_cold_run(
    folder: Path, sampling: Sampling, speculation: str, shared: int
) -> None:
    """With ``reuse = aligned`` a hit equals an uncached run of that prompt, without any condition.

    Also behind a conversation whose rows were decoded in blocks.
    """
    model = load(folder, reuse="aligned")
    first = answer(model, PROMPT, speculation=speculation)
    prompt = (*PROMPT[:shared], 7, 8, 9, *PROMPT[:20])
    grown = (*PROMPT, *first.tokens, 5, 6, 7)
    for tokens in (prompt, grown):
        warm = answer(model, tokens, sampling=sampling, speculation=speculation)
        cold = answer(model, tokens, cache=OFF, sampling=sampling, speculation=speculation)
        assert warm.hit == "l1_prefix"
        assert warm.cached % CHUNK == 0
        assert warm.cached >= min(shared, len(PROMPT)) // CHUNK * CHUNK
        assert mx.array_equal(warm.logits, cold.logits)
        assert warm.tokens == cold.tokens


@pytest.mark.parametrize("speculation", ["auto", "off"])
@pytest.mark.parametrize("extra", [1, 3, 40])
def test_longest_hit_equals_a_cold_run_in_the_same_passes(
    folder: Path, speculation: str, extra: int
) -> None:
    """The next turn after a conversation equals going on from the live state of that conversation.

    The cold run here is the first request's own decoder: the same passes, never stored.
    """
    model = load(folder, disk_bytes=10**8, disk_dir=str(folder / "l2"))
    body = GenerateBody(tokens=PROMPT, max_tokens=20, ignore_eos=True, speculation=speculation)  # type: ignore[arg-type]
    first = Generation(model.model, body, model.cache)
    decoder = first._decoder
    assert isinstance(decoder, BlockDecoder | PlainDecoder)
    while not first.finished:
        first.step()
    said = first._history
    first.close()
    held = decoder.rows
    tokens = (*PROMPT, *said, *range(100, 100 + extra))
    tail = list(tokens[held:])
    if isinstance(decoder, BlockDecoder):
        assert held == len(PROMPT) + len(said) - 1
    live: mx.array | None = None
    start = held
    while start < len(tokens):
        end = min((start // CHUNK + 1) * CHUNK, len(tokens))
        chunk = tail[start - held : end - held]
        decoder.first(chunk) if end == len(tokens) else decoder.prefill(chunk)
        start = end
    live = decoder.last_logits
    warm = answer(model, tokens, speculation=speculation)
    assert (warm.hit, warm.cached) == ("l1_prefix", held)
    assert live is not None
    assert mx.array_equal(warm.logits, live)
    model.close()
    again = loaded(model.model.defaults)
    from_disk = answer(again, (*PROMPT, *said, *range(100, 100 + extra)), speculation=speculation)
    assert from_disk.hit == "l2_exact"
    assert mx.array_equal(from_disk.logits, live)
    assert from_disk.tokens == warm.tokens


def test_draft_context_follows_the_target(folder: Path) -> None:
    """After a hit the draft's context has one row for each of the target's, as after a cold run."""
    model = load(folder)
    answer(model, PROMPT)
    body = GenerateBody(tokens=(*PROMPT[:70], 9, 9), max_tokens=20, ignore_eos=True)
    warm = Generation(model.model, body, model.cache)
    cold = Generation(model.model, body, OFF)
    for generation in (warm, cold):
        while not generation.finished:
            generation.step()
    one, two = warm._decoder, cold._decoder
    assert isinstance(one, BlockDecoder)
    assert isinstance(two, BlockDecoder)
    assert warm.statistics().cached_tokens == 70
    pending = one._pending
    assert pending is not None
    for caches in (one._draft_caches, two._draft_caches):
        assert {cache.offset for cache in caches} == {one.rows - pending.shape[1]}
    for a, b in zip(one._draft_caches, two._draft_caches, strict=True):
        keys = [np.array(cache.state[0])[..., : a.offset, :] for cache in (a, b)]
        assert np.allclose(*keys, atol=1e-4)


def test_plain_and_drafting_requests_share_what_is_sound(folder: Path) -> None:
    """A plain request goes on from a drafted snapshot; the other way round is a named miss."""
    model = load(folder)
    plain = answer(model, PROMPT, speculation="off")
    drafted = answer(model, PROMPT)
    assert (drafted.hit, drafted.reason) == ("miss", "no_draft")
    assert drafted.tokens == plain.tokens
    assert answer(model, (*PROMPT[:90], 3), speculation="off").cached == 90
    assert answer(model, (*PROMPT[:90], 3)).cached == 90


def test_cancelled_requests_leave_sound_state_and_failed_ones_none(folder: Path) -> None:
    """What was computed before a cancel is reused; after an error nothing is stored."""
    model = load(folder)
    body = GenerateBody(tokens=PROMPT, max_tokens=20, ignore_eos=True)
    cancelled = model.begin(body)
    for _ in range(3):
        cancelled.step()
    cancelled.close()
    expected = answer(model, PROMPT, cache=OFF)
    warm = answer(model, PROMPT)
    assert warm.cached == 3 * CHUNK
    assert mx.array_equal(warm.logits, expected.logits)
    assert warm.tokens == expected.tokens
    model.clear_cache()
    failed = Generation(model.model, body, model.cache)
    failed.step()
    decoder = failed._decoder
    assert decoder is not None
    decoder.prefill = lambda chunk: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        failed.step()
    failed.close()
    assert model.cache_state().ram_entries == 0


def test_stop_inside_a_block_publishes_nothing_behind_it(folder: Path) -> None:
    """A stop that cuts a committed block cuts the stored state there too."""
    model = load(folder)
    full = answer(model, PROMPT, cache=OFF)
    text = model.model.tokenizer.decode(full.tokens[:6])
    body = GenerateBody(tokens=PROMPT, max_tokens=20, ignore_eos=True, stop=(text[-3:],))
    generation = Generation(model.model, body, model.cache)
    while not generation.finished:
        generation.step()
    history = generation._history
    generation.close()
    manager = model.cache.manager
    assert manager is not None
    (candidate,) = manager._ram.candidates()
    whole = [*PROMPT, *history]
    assert list(candidate.tokens) == whole[: len(candidate.tokens)]


@pytest.mark.parametrize("kind", ["llama with windows", "mamba", "gemma4", "qwen3_5", "lfm2"])
def test_state_that_cannot_be_cut_hits_at_its_boundaries(tmp_path: Path, kind: str) -> None:
    """Rotating and recurrent models resume near the end of a changed prompt, and exactly."""
    make_member(tmp_path / "t", (STOCK | HYBRIDS)[kind])
    model = load(tmp_path, draft=False)
    assert not model.cache.cuttable
    stops = {"cache": OpenCache(manager=None, cuttable=False)}
    first = answer(model, PROMPT)
    again = answer(model, PROMPT)
    assert (again.hit, again.cached) == ("l1_exact", len(PROMPT))
    assert mx.array_equal(first.logits, again.logits)
    assert first.tokens == again.tokens
    changed = (*PROMPT[:140], 7, 7, 7)
    warm = answer(model, changed)
    assert (warm.hit, warm.cached) == ("l1_prefix", 128)
    cold = answer(model, changed, **stops)  # type: ignore[arg-type]
    assert mx.array_equal(warm.logits, cold.logits)
    assert warm.tokens == cold.tokens
    assert answer(model, (*PROMPT[:20], *range(5, 60))).reason == "boundary"
    grown = (*PROMPT, *first.tokens, 3)
    assert answer(model, grown).cached >= len(PROMPT)


def test_next_turn_hits_though_templates_render_the_tail_anew(tmp_path: Path) -> None:
    """A chat of a model whose state cannot be cut resumes where its turns part."""
    from dflashd.protocol.messages import ChatMessage

    make_member(tmp_path / "t", STOCK["mamba"])
    from ..tiny import CHAT_TEMPLATE

    config = tmp_path / "t" / "tokenizer_config.json"
    assert "im_start" in CHAT_TEMPLATE
    assert config.exists()
    model = load(tmp_path, draft=False)

    def ask(*texts: str) -> tuple[str, int, int]:
        roles = ("system", "user", "assistant", "user")
        turns = tuple(
            ChatMessage(role=role, content=text) for role, text in zip(roles, texts, strict=False)
        )
        body = GenerateBody(messages=turns, max_tokens=4, ignore_eos=True)
        generation = model.begin(body)
        while not generation.finished:
            generation.step()
        facts = generation.statistics()
        generation.close()
        return facts.cache_hit, facts.cached_tokens, facts.prompt_tokens

    system = "You answer in one short sentence, whatever people may want to hear."
    assert ask(system, "what is the weather")[0] == "miss"
    hit, cached, prompt = ask(system, "print the sum of the items")
    assert hit == "l1_prefix"
    assert cached > prompt / 2
    hit, cached, prompt = ask(system, "what is the weather", "other words than said", "why?")
    assert hit == "l1_prefix"
    assert cached > 60
