"""A load that is killed, wherever it is, leaves everything as it was, and others at work."""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import lfm2
from safetensors.numpy import (  # pyright: ignore[reportMissingTypeStubs]
    load_file,  # pyright: ignore[reportUnknownVariableType]
    save_file,  # pyright: ignore[reportUnknownVariableType]
)

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import LoadBody
from dflashd.worker.checkpoints import digest
from dflashd.worker.engine.border import Generation as AnyGeneration
from dflashd.worker.engine.mlx_engine import MlxEngine
from dflashd.worker.errand import Errand, Progress
from dflashd.worker.errors import Withdrawn
from dflashd.worker.hooks.guard import HookGuard, Ownership
from dflashd.worker.log import log
from dflashd.worker.loop.registry import Registry

from ..tiny import Shape, make_draft, make_target
from .block_run import body
from .classes import Members, changed, everything
from .families import HYBRIDS, make_member, make_members_draft
from .held_memory import held_bytes

pytestmark = pytest.mark.slow

SHAPE = Shape(layers=3)
PROMPT = [77, 3, 21, 40, 5, 99, 12, 7, 30, 61]
COUNT = 24
NAMES = ("sharing", "other")
"""Models at work: one on the very target that is being loaded again, one of another family."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undone")
    make_target(folder / "target", SHAPE)
    make_draft(folder / "mine", SHAPE, block_tokens=4, layers=1, target_layer_ids=(0, 2))
    make_draft(folder / "draft", SHAPE, seed=2, block_tokens=6, layers=1, target_layer_ids=(1,))
    make_target(folder / "lone", SHAPE, seed=5)
    make_member(folder / "recurrent", HYBRIDS["qwen3_5"])
    make_members_draft(folder / "its draft", HYBRIDS["qwen3_5"])
    make_member(folder / "hybrid", HYBRIDS["lfm2"])
    make_members_draft(folder / "hybrid draft", HYBRIDS["lfm2"])
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a load might leave something in."""

    memory_bytes: int
    owners: tuple[Ownership, ...]
    parts: int
    models: tuple[str, ...]
    caches: int
    classes: Members


class Site:
    """Two models at work, and room for a third of ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guard = HookGuard()
        self.engine = MlxEngine(self.guard)
        self.registry = Registry(self.engine)
        self.load("sharing", self.pair("target", "mine"))
        self.load("other", self.pair("recurrent", "its draft"))
        self.truth = [self.finished(generation) for generation in self.begin()]

    def pair(self, target: str, draft: str | None) -> LoadBody:
        given = None if draft is None else str(self.folder / draft)
        return LoadBody(target=str(self.folder / target), draft=given)

    def begin(self) -> list[AnyGeneration]:
        self.clear_caches()
        return [self.registry.get(name).begin(body(PROMPT, COUNT)) for name in NAMES]

    def clear_caches(self) -> None:
        for name in NAMES:
            self.registry.get(name).clear_cache()

    def finished(self, generation: AnyGeneration) -> list[int]:
        tokens: list[int] = []
        while not generation.finished:
            output = generation.step()
            tokens += output.tokens if output else ()
        generation.close()
        return tokens

    def state(self) -> State:
        self.engine.reclaim()
        return State(
            memory_bytes=held_bytes(),
            owners=self.guard.owners(),
            parts=len(self.engine.shared),
            models=self.registry.names,
            caches=len(self.engine.caches.managers),
            classes=everything(),
        )

    def load(self, name: str, pair: LoadBody, progress: Progress = lambda *_: None) -> None:
        """A load whole, as a loop without a thread for preparations does it."""
        prepared = self.engine.prepare(name, pair, Errand(progress))
        self.registry.load(name, pair, progress, prepared=prepared)

    def killed(self, pair: LoadBody, progress: Progress = lambda *_: None) -> DflashError:
        """The load's error, without the traceback that refers to all it had loaded."""
        with pytest.raises(DflashError) as caught:
            self.load("m", pair, progress)
        code, message = caught.value.code, caught.value.message
        del caught
        gc.collect()
        return DflashError(code, message)

    def loaded(self, pair: LoadBody, progress: Progress = lambda *_: None) -> None:
        """A load that succeeds, and is taken back."""
        self.load("m", pair, progress)
        self.registry.unload("m")
        gc.collect()


@dataclass(slots=True)
class Fuse:
    """Lets through as many as are ``left``, and then blows."""

    blow: Callable[[], None]
    left: int | None = None
    passed: int = 0

    def pass_or_blow(self) -> None:
        self.passed += 1
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.blow()

    def count(self, run: Callable[[], None]) -> int:
        """How many times ``run`` comes by."""
        self.left, self.passed = None, 0
        run()
        return self.passed


@pytest.fixture(scope="module")
def working(original: Path) -> Generator[Site]:
    """The two models, loaded once for all tests: each finds them as the one before has to."""
    site = Site(original)
    yield site
    site.registry.unload("sharing")
    site.registry.unload("other")
    assert not site.guard.owners()


@pytest.fixture
def site(
    original: Path, working: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Site]:
    """In the middle of both models' answers a load is killed, and nothing shows."""
    # Records that pytest keeps hold tracebacks, and those the arrays of all frames.
    monkeypatch.setattr(log, "disabled", True)
    # A digest that is remembered is not computed again, and a load says one word less.
    monkeypatch.setattr(digest, "SETTLED_S", math.inf)
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    site = working
    site.folder = tmp_path
    running = site.begin()
    begun = [[*(output.tokens if (output := generation.step()) else ())] for generation in running]
    before = site.state()
    yield site
    after = site.state()
    assert after.memory_bytes <= before.memory_bytes + A_TOKEN_BYTES
    assert not changed(before.classes, after.classes)
    assert (after.owners, after.parts, after.models, after.caches) == (
        before.owners,
        before.parts,
        before.models,
        before.caches,
    )
    tokens = [[*first, *site.finished(g)] for first, g in zip(begun, running, strict=True)]
    assert tokens == site.truth


A_TOKEN_BYTES = 64
"""Plain decoding computes one token ahead, which may be there at one look and not at the other."""
PAIRS = [("target", "draft"), ("lone", "draft"), ("lone", None)]
"""A second draft for a target in use; everything new; a target alone."""


@pytest.mark.parametrize("which", ["lone", "draft"])
@pytest.mark.parametrize("keep", [None, 0.5, 0.999])
def test_missing_and_torn_files(which: str, keep: float | None, site: Site) -> None:
    """Weights that are not there, or not whole."""
    file = site.folder / which / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if keep is not None:
        file.write_bytes(content[: int(len(content) * keep)])
    target = "target" if which == "draft" else "lone"
    assert site.killed(site.pair(target, "draft")).code == ErrorCode.load_failed


@pytest.mark.parametrize("target", ["target", "lone"])
def test_a_wrong_shape(target: str, site: Site) -> None:
    """A draft's tensor of another shape than its configuration says, and one for another target."""
    file = site.folder / "draft" / "model.safetensors"
    arrays = load_file(file)
    save_file(arrays | {"fc.weight": arrays["fc.weight"][:, :-1]}, file)
    assert "fc.weight" in site.killed(site.pair(target, "draft")).message
    assert "hidden size" in site.killed(site.pair(target, "its draft")).message


@pytest.mark.parametrize("target", ["target", "lone"])
def test_a_wrong_target(target: str, site: Site) -> None:
    """A configuration that the weights do not fit."""
    file = site.folder / target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_size": 32}))
    assert site.killed(site.pair(target, None)).code == ErrorCode.load_failed


def test_a_conflict(site: Site) -> None:
    """Another backend holds the class: the load is refused before any weights are read."""
    layer = lfm2.Lfm2DecoderLayer.__new__(lfm2.Lfm2DecoderLayer)
    theirs = site.guard.claim("theirs", "t", [layer])
    stages: list[str] = []
    error = site.killed(site.pair("hybrid", "hybrid draft"), lambda *at: stages.append(at[0]))
    assert error.code == ErrorCode.hook_conflict
    for part in ("lfm2.Lfm2DecoderLayer", "theirs for model t", "dflash", "model m"):
        assert part in error.message
    assert "weights" not in stages
    theirs.release()


def out_of_memory() -> None:
    """What mlx says when it cannot have what it needs; provoked, its CPU device may crash."""
    raise RuntimeError("[malloc] Unable to allocate 4611686018427387904 bytes.")


original_eval = mx.eval


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_out_of_memory(
    target: str, draft: str | None, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation that fails in any evaluation of the load, with mlx's own exception."""
    fuse = Fuse(out_of_memory)

    def evaluating(*trees: Any) -> None:
        fuse.pass_or_blow()
        original_eval(*trees)

    monkeypatch.setattr(mx, "eval", evaluating)
    evaluations = fuse.count(lambda: site.loaded(site.pair(target, draft)))
    assert evaluations > 2
    for survived in range(evaluations):
        fuse.left = survived
        error = site.killed(site.pair(target, draft))
        assert error.code == ErrorCode.out_of_memory
        assert "[malloc" in error.message
    fuse.left = None


def withdrawn() -> None:
    """What a progress callback raises when nobody wants the model any more."""
    raise Withdrawn("no longer wanted")


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_withdrawal(target: str, draft: str | None, site: Site) -> None:
    """Each progress call of the load may be its last."""
    fuse = Fuse(withdrawn)
    stages: set[str] = set()

    def progress(stage: str, *_: object) -> None:
        stages.add(stage)
        fuse.pass_or_blow()

    calls = fuse.count(lambda: site.loaded(site.pair(target, draft), progress))
    assert stages == {"digest", "weights", "warm-up"}
    for survived in range(calls):
        fuse.left = survived
        error = site.killed(site.pair(target, draft), progress)
        assert (error.code, error.message) == (ErrorCode.shutting_down, "no longer wanted")


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_others_go_on_between_the_steps_of_a_load(
    target: str, draft: str | None, site: Site
) -> None:
    """Requests that run at each progress of a load, killed at last, say what they say alone."""
    running = site.begin()
    tokens: list[list[int]] = [[] for _ in running]

    def progress(stage: str, *_: object) -> None:
        for i, generation in enumerate(running):
            output = None if generation.finished else generation.step()
            tokens[i] += output.tokens if output else ()
        if stage == "warm-up":
            withdrawn()

    assert site.killed(site.pair(target, draft), progress).code == ErrorCode.shutting_down
    assert all(tokens)
    rest = [site.finished(generation) for generation in running]
    assert [first + more for first, more in zip(tokens, rest, strict=True)] == site.truth
    site.clear_caches()
