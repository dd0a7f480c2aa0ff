"""Whatever happens to a model that hooks, mlx-lm stays as it was, and no claim outlives a model."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3, qwen3_5, qwen3_next

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import LoadBody
from dflashd.worker.engine import dflash_backend, loader
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.mlx_engine import MlxEngine
from dflashd.worker.engine.model import Model
from dflashd.worker.errors import DFlashHookConflict, Withdrawn
from dflashd.worker.hooks.guard import GUARD

from .block_run import body, finish, plain_tokens
from .classes import changed, everything
from .families import HYBRIDS, MEMBERS, Family, make_member, make_members_draft
from .whole_load import load

pytestmark = pytest.mark.slow

FAMILIES: dict[str, Family] = {
    name: (MEMBERS | HYBRIDS)[name]
    for name in ("qwen3", "gpt_oss", "gemma4", "qwen3_5", "lfm2_moe", "kimi_k25")
}
PROMPT = [77, 3, 21, 40, 5, 99, 12, 7, 30, 61]


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadBody:
    """A pair that was loaded once, so that all its modules are there."""
    made = make_pair(tmp_path_factory.mktemp("pair"), FAMILIES[str(request.param)])
    load_model("first", made, lambda *_: None).close()
    return made


def make_pair(folder: Path, family: Family) -> LoadBody:
    target = make_member(folder / "target", family)
    draft = make_members_draft(folder / "draft", family)
    return LoadBody(target=str(target), draft=str(draft), prefill_chunk_tokens=4, block_tokens=4)


@pytest.fixture(autouse=True)
def nothing_changes(pair: LoadBody) -> Generator[None]:
    """Nothing in the modules may change."""
    before = everything()
    assert len(before) > 1000
    yield
    assert not changed(before, everything())
    assert not GUARD.owners()


def classes_of(model: Model) -> list[type]:
    modules: Any = model.target._model.modules()  # pyright: ignore[reportAttributeAccessIssue]
    return [type(module) for module in modules]


def test_requests_leave_instances_as_they_were(pair: LoadBody) -> None:
    """After load, generation, cancel, and unload every module has the class it was made with."""
    model = load_model("m", pair, lambda *_: None)
    loaded = classes_of(model)
    made = everything()
    assert {o.owner for o in GUARD.owners()} == {"dflash"}
    assert finish(Generation(model, body(PROMPT, 20))) == plain_tokens(model, PROMPT, 20)[10:]
    cancelled = Generation(model, body(PROMPT, 20))
    for _ in range(5):
        cancelled.step()
        assert classes_of(model) == loaded
    cancelled.close()
    assert classes_of(model) == loaded
    assert everything().keys() == made.keys()
    model.close()
    model.close()


def test_a_crash_inside_a_pass_leaves_nothing(
    pair: LoadBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that fails in the middle of a hooked pass harms neither classes nor others."""
    model = load_model("m", pair, lambda *_: None)
    loaded, truth = classes_of(model), plain_tokens(model, PROMPT, 12)
    for fails_at in (6, 8):
        crashing, other = (Generation(model, body(PROMPT, 12)) for _ in range(2))
        while crashing.phase == "prefill":
            crashing.step()
        hooked: list[bool] = []

        def fail(found: list[bool] = hooked) -> None:
            found.append(classes_of(model) != loaded)
            raise RuntimeError("the device failed")

        with monkeypatch.context() as patch:
            patch.setattr(mx.fast, "rms_norm", _failing(mx.fast.rms_norm, fails_at, fail))
            with pytest.raises(RuntimeError, match="the device failed"):
                crashing.step()
        assert hooked == [True], "the failure was not inside a hooked pass"
        crashing.close()
        assert classes_of(model) == loaded
        assert finish(other) == truth[len(PROMPT) :]
    model.close()


def _failing(original: Any, calls: int, fail: Callable[[], None]) -> Any:
    left = [calls]

    def failing(*args: Any, **kwargs: Any) -> mx.array:
        left[0] -= 1
        if left[0] < 0:
            fail()
        return original(*args, **kwargs)

    return failing


STAGES = ("load_draft", "Drafter", "evaluate", "load_tokenizer", "fingerprint_of", "_warm_up")


@pytest.mark.parametrize("error", [RuntimeError("[malloc] Unable to allocate"), Withdrawn("no")])
def test_a_load_that_fails_leaves_no_claim(
    pair: LoadBody, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure or a withdrawal at any stage leaves classes and claims as before, others' too."""
    other = load_model("other", pair, lambda *_: None)
    owned, before = GUARD.owners(), everything()

    def fail(*_: Any, **__: Any) -> None:
        raise error

    for stage in STAGES:
        with monkeypatch.context() as patch:
            patch.setattr(loader, stage, fail)
            with pytest.raises((DflashError, Withdrawn)):
                load_model("m", pair, lambda *_: None)
        assert GUARD.owners() == owned, stage
        assert not changed(before, everything()), stage
    other.close()


def test_a_cache_that_cannot_open_leaves_no_claim(
    pair: LoadBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own last stage is covered too; unloading gives the claims back."""
    engine = MlxEngine()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(dflash_backend, "open_cache", fail)
        with pytest.raises(DflashError, match="disk full"):
            load(engine, "m", pair)
    assert not GUARD.owners()
    held = load(engine, "m", pair)
    assert GUARD.owners()
    held.close()


def test_a_conflict_refuses_the_load_only(pair: LoadBody) -> None:
    """A class that another backend holds refuses a draft before weights are read, and no more."""
    mine = load_model("mine", pair, lambda *_: None)
    truth = finish(Generation(mine, body(PROMPT, 12)))
    stages: list[str] = []
    layer = mine.target.layers[0]
    mine.close()
    theirs = GUARD.claim("theirs", "b", [layer])
    with pytest.raises(DFlashHookConflict) as caught:
        load_model("m", pair, lambda stage, *_: stages.append(stage))
    assert caught.value.code == ErrorCode.hook_conflict
    assert "theirs" in caught.value.message
    assert "weights" not in stages
    theirs.release()
    del caught
    again = load_model("m", pair, lambda *_: None)
    assert finish(Generation(again, body(PROMPT, 12))) == truth
    again.close()


def test_a_patch_behind_our_back_stops_blocks_but_not_steps(
    pair: LoadBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that would run through a patched class is refused; plain decoding goes on."""
    model = load_model("m", pair, lambda *_: None)
    cls = type(model.target.layers[1])
    original = cls.__call__
    with monkeypatch.context() as patch:
        patch.setattr(cls, "__call__", functools.partialmethod(original))
        with pytest.raises(DFlashHookConflict, match=r"__call__ was changed"):
            Generation(model, body(PROMPT, 4))
        assert len(finish(Generation(model, body(PROMPT, 4, speculation="off")))) == 4
    assert len(finish(Generation(model, body(PROMPT, 4)))) == 4
    model.close()


def test_a_dropped_model_leaves_no_claim(pair: LoadBody) -> None:
    """A model that nobody closed gives its claims back when it goes."""
    model = load_model("m", pair, lambda *_: None)
    assert GUARD.owners()
    del model
    gc.collect()
    assert not GUARD.owners()


def test_modules_used_are_covered() -> None:
    """The fingerprint sees the classes these families hook."""
    seen = everything()
    assert (f"{qwen3_5.__name__}.GatedDeltaNet", "__call__") in seen
    assert seen["mlx_lm.models.qwen3", "TransformerBlock"] is qwen3.TransformerBlock
    assert seen["mlx_lm.models.qwen3_5", "Attention"] is qwen3_next.Qwen3NextAttention
