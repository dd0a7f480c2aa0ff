"""Models that have weights in common hold them once, and do not notice one another."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil
import pytest
from safetensors.numpy import (  # pyright: ignore[reportMissingTypeStubs]
    load_file,  # pyright: ignore[reportUnknownVariableType]
    save_file,  # pyright: ignore[reportUnknownVariableType]
)

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import CacheSettings, LoadBody, Sampling
from dflashd.worker.engine import memory
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.mlx_engine import MlxEngine, MlxModel
from dflashd.worker.hooks.guard import HookGuard

from ..tiny import Shape, make_draft, make_target
from .block_run import body, finish, plain_tokens
from .families import HYBRIDS, make_member, make_members_draft
from .held_memory import held_bytes
from .whole_load import load

pytestmark = pytest.mark.slow

PROMPT = [77, 3, 21, 40, 5, 99, 12, 7, 30, 61]


class Host:
    """An engine with a guard of its own, and what it holds."""

    def __init__(self) -> None:
        self.guard = HookGuard()
        self.engine = MlxEngine(self.guard)

    def load(self, name: str, target: Path, draft: Path | None = None, **fields: Any) -> MlxModel:
        given: dict[str, Any] = {"cache": CacheSettings(enabled=False)} | fields
        configured = LoadBody(target=str(target), draft=str(draft) if draft else None, **given)
        model = load(self.engine, name, configured)
        assert isinstance(model, MlxModel)
        return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    make_target(folder / "target")
    make_draft(folder / "one", block_tokens=4, target_layer_ids=(1, 4))
    make_draft(folder / "two", seed=2, block_tokens=8, target_layer_ids=(0, 2, 5))
    return folder


@pytest.fixture
def host() -> Generator[Host]:
    """Whatever is loaded and dropped in a test leaves no array, no part and no claim."""
    before = held_bytes()
    host = Host()
    yield host
    # Functions that mlx compiled keep their constants, a few bytes each.
    assert held_bytes() <= before + 1000
    assert len(host.engine.shared) == 0
    assert not host.guard.owners()


def stored_bytes(*folders: Path) -> int:
    files = [load_file(folder / "model.safetensors") for folder in folders]
    return sum(array.nbytes for arrays in files for array in arrays.values())


def answer(model: MlxModel, count: int = 40, **fields: Any) -> list[int]:
    return finish(Generation(model.model, body(PROMPT, count, **fields)))


def interleaved(*generations: Generation) -> list[list[int]]:
    """One step of each in turn, to the end of all."""
    tokens: list[list[int]] = [[] for _ in generations]
    while not all(generation.finished for generation in generations):
        for i, generation in enumerate(generations):
            output = None if generation.finished else generation.step()
            tokens[i] += output.tokens if output else ()
    return tokens


def test_one_target_with_two_drafts(folder: Path, host: Host) -> None:
    """The target is there once; the facts say what is used, what was there, and which weights."""
    target, one, two = folder / "target", folder / "one", folder / "two"
    before = held_bytes()
    a = host.load("a", target, one)
    b = host.load("b", target, two, context_tokens=64, sampling=Sampling(temperature=1.0))
    plain = host.load("plain", target)
    assert held_bytes() - before <= stored_bytes(target, one, two) * 1.02
    assert a.model.target is b.model.target is plain.model.target
    assert a.model.tokenizer is b.model.tokenizer
    assert (a.facts.memory_bytes, a.facts.shared_bytes) == (stored_bytes(target, one), 0)
    assert b.facts.memory_bytes == stored_bytes(target, two)
    assert b.facts.shared_bytes == plain.facts.shared_bytes == stored_bytes(target)
    assert a.facts.target_digest == b.facts.target_digest == plain.facts.digest
    assert len({a.facts.draft_digest, b.facts.draft_digest, plain.facts.draft_digest}) == 3
    assert (plain.facts.draft_digest, len(a.facts.draft_digest)) == ("", 64)
    assert (a.facts.block_tokens, b.facts.block_tokens, b.facts.context_tokens) == (4, 8, 64)
    for model in (a, b, plain):
        model.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_with_other_layers_work_at_the_same_time(
    folder: Path, temperature: float, host: Host
) -> None:
    """Interleaved step by step on one target, each request says what it says alone."""
    sampling = Sampling(temperature=temperature, seed=7)
    solo = [
        answer(Host().load("x", folder / "target", folder / draft), sampling=sampling)
        for draft in ("one", "two")
    ]
    models = [host.load(draft, folder / "target", folder / draft) for draft in ("one", "two")]
    asked = [Generation(model.model, body(PROMPT, 40, sampling=sampling)) for model in models]
    plain = Generation(models[0].model, body(PROMPT, 40, speculation="off"))
    together = interleaved(*asked, plain)
    assert together[:2] == solo
    assert together[2] == plain_tokens(models[0].model, PROMPT, 40)[len(PROMPT) :]
    assert {generation.statistics().engine for generation in asked} == {"dflash"}
    for model in models:
        model.close()


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2_moe", "gpt_oss"])
def test_recurrent_and_sliding_targets_are_shared_too(
    family: str, tmp_path: Path, host: Host
) -> None:
    """Hooks for undoing sit on the same instances for both models, and never meet."""
    target = make_member(tmp_path / "target", HYBRIDS[family])
    draft = make_members_draft(tmp_path / "draft", HYBRIDS[family])
    models = [host.load(f"m{n}", target, draft, block_tokens=n) for n in (3, 6)]
    assert models[0].model.drafter is models[1].model.drafter
    truth = plain_tokens(models[0].model, PROMPT, 30)[len(PROMPT) :]
    asked = [Generation(model.model, body(PROMPT, 30)) for model in models for _ in range(2)]
    assert interleaved(*asked) == [truth] * 4
    for model in models:
        model.close()


def test_an_unload_leaves_the_other_at_work(folder: Path, host: Host) -> None:
    """One model is closed and dropped in the middle of the other's answer."""
    a = host.load("a", folder / "target", folder / "one")
    truth = answer(a)
    b = host.load("b", folder / "target", folder / "two")
    running = Generation(a.model, body(PROMPT, 40))
    begun = running.step()
    assert begun is not None
    answer(b, 5)
    b.close()
    del b
    gc.collect()
    mx.clear_cache()
    assert [*begun.tokens, *finish(running)] == truth
    assert {ownership.models for ownership in host.guard.owners()} == {("a",)}
    assert host.load("b", folder / "target", folder / "two").facts.shared_bytes > 0
    a.close()


def test_the_last_release_frees_the_weights(tmp_path: Path, host: Host) -> None:
    """As the system measures it: a second model costs nothing, and only the last one gives back."""
    shape = Shape(hidden=512, intermediate=2048, heads=8, kv_heads=8)
    target = make_target(tmp_path / "target", shape)
    weights = stored_bytes(target)
    assert weights > 80e6
    first = host.load("first", target)
    loaded = settled()
    second = host.load("second", target, sampling=Sampling(temperature=0.5))
    # What else the process does takes or gives some megabytes; another copy would be a whole one.
    assert settled() - loaded < 0.5 * weights
    first.close()
    del first
    assert loaded - settled() < 0.5 * weights
    second.close()
    del second
    assert loaded - settled() > 0.5 * weights


def settled() -> int:
    gc.collect()
    memory.reclaim()
    return psutil.Process().memory_info().rss


def test_the_same_files_elsewhere_are_the_same(folder: Path, tmp_path: Path, host: Host) -> None:
    """Sharing goes by content: a copy of the folder is not loaded again."""
    copy = Path(shutil.copytree(folder / "target", tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config))  # another layout, the same content
    a, b = host.load("a", folder / "target"), host.load("b", copy)
    assert a.model.target is b.model.target


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 500.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rms_norm_eps": 1e-3},
        {"sliding_window": 8, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    ],
)
def test_another_configuration_is_another_target(
    folder: Path, change: dict[str, Any], tmp_path: Path, host: Host
) -> None:
    """Equal weights that compute something else are not shared."""
    copy = Path(shutil.copytree(folder / "target", tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | change))
    a, b = host.load("a", folder / "target"), host.load("b", copy)
    assert a.facts.digest == b.facts.digest
    assert (b.facts.shared_bytes, a.model.target is b.model.target) == (0, False)
    again = Host().load("alone", copy)
    assert answer(b) == answer(again)


def test_another_dtype_is_another_target(folder: Path, host: Host) -> None:
    """Each dtype is computed for its own sake; asking for one twice is not."""
    models = [
        host.load(f"{dtype} {n}", folder / "target", folder / "one", dtype=dtype)
        for dtype in ("float32", "bfloat16", "keep")
        for n in range(2)
    ]
    assert [model.facts.shared_bytes > 0 for model in models] == [False, True] * 3
    assert len({id(model.model.target) for model in models}) == 3


def test_another_draft_configuration_is_another_draft(
    folder: Path, tmp_path: Path, host: Host
) -> None:
    """A draft's weights are shared only by models that read the same layers of the target."""
    copy = Path(shutil.copytree(folder / "one", tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [2, 3]
    (copy / "config.json").write_text(json.dumps(config))
    a = host.load("a", folder / "target", folder / "one")
    b = host.load("b", folder / "target", copy)
    c = host.load("c", folder / "target", folder / "one", block_tokens=3)
    assert a.model.drafter is c.model.drafter
    assert a.model.drafter is not b.model.drafter
    assert b.facts.shared_bytes == stored_bytes(folder / "target")
    assert c.facts.shared_bytes == c.facts.memory_bytes


def test_frequent_tokens_are_a_part_too(folder: Path, tmp_path: Path, host: Host) -> None:
    """The part of the head that a draft reads is held and counted once for each list."""
    draft = Path(shutil.copytree(folder / "one", tmp_path / "draft"))
    (draft / "frequent_tokens.json").write_text(json.dumps(list(range(100))))
    a, b = (host.load(name, folder / "target", draft) for name in "ab")
    (draft / "frequent_tokens.json").write_text(json.dumps(list(range(50))))
    c = host.load("c", folder / "target", draft)
    head = 100 * Shape().hidden * 4
    assert a.facts.memory_bytes == stored_bytes(folder / "target", draft) + head
    assert b.facts.shared_bytes == b.facts.memory_bytes == a.facts.memory_bytes
    assert c.facts.shared_bytes == c.facts.memory_bytes - head // 2
    assert answer(c) == answer(a)


def test_an_edited_tokenizer_is_another_tokenizer(folder: Path, tmp_path: Path, host: Host) -> None:
    """The weights stay shared; what turns text into tokens follows its files."""
    copy = Path(shutil.copytree(folder / "target", tmp_path / "copy"))
    a = host.load("a", copy)
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ messages[0]['content'] }}"
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    b = host.load("b", copy)
    assert a.model.target is b.model.target
    said = [{"role": "user", "content": "hello"}]
    rendered = [m.model.tokenizer.apply_chat_template(said, tokenize=False) for m in (a, b)]
    assert rendered[1] == "hello" != rendered[0]


def test_new_weights_at_an_old_path_are_new(folder: Path, tmp_path: Path, host: Host) -> None:
    """A file replaced under a loaded model's feet is another model to the next load."""
    copy = Path(shutil.copytree(folder / "target", tmp_path / "copy"))
    a = host.load("a", copy)
    truth = answer(a)
    make_target(copy, seed=3)
    b = host.load("b", copy)
    assert b.facts.shared_bytes == 0
    assert answer(a) == truth != answer(b)


def test_weights_that_change_during_the_load_are_refused(
    folder: Path, tmp_path: Path, host: Host
) -> None:
    """What was digested is what is shared: a file touched meanwhile ends the load."""
    copy = Path(shutil.copytree(folder / "target", tmp_path / "copy"))
    file = copy / "model.safetensors"

    def progress(stage: str, done: int, _total: int, _unit: str) -> None:
        if stage == "weights" and done == 1:
            save_file(load_file(file), file, {"format": "mlx"})

    with pytest.raises(DflashError, match="changed while they were being loaded") as caught:
        load(host.engine, "m", LoadBody(target=str(copy)), progress)
    assert caught.value.code == ErrorCode.load_failed
    assert len(host.engine.shared) == 0
    del caught


@pytest.mark.parametrize("changed", ["target", "one"])
def test_settings_that_change_during_the_load_are_refused(
    folder: Path, tmp_path: Path, host: Host, changed: str
) -> None:
    """A pair was accepted by its configurations: others end the load, the next one takes them."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    file = copy / changed / "config.json"
    settings = json.loads(file.read_text())

    def progress(stage: str, done: int, _total: int, _unit: str) -> None:
        if stage == "digest" and done and "rms_norm_eps" in settings:
            file.write_text(
                json.dumps(settings | {"rms_norm_eps": settings.pop("rms_norm_eps") * 2})
            )

    body = LoadBody(target=str(copy / "target"), draft=str(copy / "one"))
    with pytest.raises(DflashError, match="changed while they were being loaded") as caught:
        load(host.engine, "m", body, progress)
    assert caught.value.code == ErrorCode.load_failed
    assert len(host.engine.shared) == 0
    del caught
    assert host.load("m", copy / "target", copy / "one").facts.engine == "dflash"
