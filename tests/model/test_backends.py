"""Backends of other packages: found by entry point, guarded like our own, loud when they clash."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest
from mlx_lm.models import llama, qwen3_5, qwen3_next
from mlx_lm.utils import load_model as load_stock

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import LoadBody
from dflashd.worker.engine.border import HeldModel
from dflashd.worker.engine.mlx_engine import MlxEngine
from dflashd.worker.errors import DFlashHookConflict, Withdrawn
from dflashd.worker.hooks.guard import HookGuard

from ..thirdparty.site import install, on_path
from ..tiny import Shape, make_draft, make_target
from .block_run import body
from .classes import changed, code_paths, everything
from .families import HYBRIDS, make_member
from .whole_load import load

PROMPT = [77, 3, 21, 40, 5, 99, 12, 7, 30, 61]
SHAPE = Shape(layers=2)
ATTENTION: Any = qwen3_next.Qwen3NextAttention


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backends")
    make_target(folder / "llama", SHAPE)
    make_draft(folder / "draft", SHAPE, layers=1, block_tokens=4, target_layer_ids=(0, 1))
    make_member(folder / "qwen3_next", HYBRIDS["qwen3_next"])
    make_member(folder / "qwen3_5", HYBRIDS["qwen3_5"])
    install(folder / "site")
    return folder


class Host:
    """An engine with a guard of its own, in a process that has the other package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guard = HookGuard()
        self.engine = MlxEngine(self.guard)

    def load(self, name: str, target: str, backend: str, draft: str | None = None) -> HeldModel:
        given = str(self.folder / draft) if draft else None
        configured = LoadBody(target=str(self.folder / target), draft=given, backend=backend)
        return load(self.engine, name, configured)

    def refused(self, *args: Any) -> DflashError:
        with pytest.raises(DflashError) as caught:
            self.load(*args)
        return caught.value


@pytest.fixture
def host(folder: Path) -> Generator[Host]:
    """Whatever happens, mlx-lm is as it was when all models are gone."""
    before = everything()
    with on_path(folder / "site"):
        host = Host(folder)
        yield host
    gc.collect()
    assert not host.guard.owners()
    assert not changed(before, everything())


def answer(model: HeldModel, count: int = 12, **fields: Any) -> list[int]:
    generation = model.begin(body(PROMPT, count, **fields))
    tokens: list[int] = []
    while not generation.finished:
        output = generation.step()
        tokens += output.tokens if output else ()
    generation.close()
    return tokens


def answered() -> dict[str, int]:
    return importlib.import_module("field_backends").answered


def test_an_unknown_backend_is_refused(host: Host) -> None:
    """The error names what is installed; a misspelt name is never another backend."""
    error = host.refused("m", "llama", "flash")
    assert error.code == ErrorCode.unsupported
    assert "no backend flash" in error.message
    for name in ("dflash", "field-alpha", "field-beta", "dflashd.backends"):
        assert name in error.message


def test_an_installed_backend_serves(host: Host) -> None:
    """It loads and answers as configured; its patch serves its own requests and nobody else's."""
    theirs = host.load("a", "llama", "field-alpha")
    ours = host.load("b", "llama", "dflash", "draft")
    assert {(o.owner, o.models) for o in host.guard.owners()} == {
        ("field-alpha", ("a",)),
        ("dflash", ("b",)),
    }
    truth = answer(ours, speculation="off")
    assert answered()["alpha"] == 0
    assert answer(theirs) == truth
    calls = answered()["alpha"]
    assert calls > 0
    assert answer(ours) == truth
    assert answered()["alpha"] == calls
    theirs.close()
    assert "__wrapped__" not in vars(llama.Attention.__call__)
    assert answer(ours) == truth
    ours.close()


def test_the_conflict_from_the_field(host: Host) -> None:
    """Two backends, one attention class in two families: a loud error, and nothing changes."""
    assert vars(qwen3_5)["Attention"] is ATTENTION
    first = host.load("first", "qwen3_next", "field-alpha")
    second = host.load("second", "qwen3_next", "field-alpha")
    truth = answer(first)
    running = first.begin(body(PROMPT, 12))
    tokens = [*(output.tokens if (output := running.step()) else ())]
    before, owners = everything(), host.guard.owners()
    with pytest.raises(DFlashHookConflict) as caught:
        host.load("third", "qwen3_5", "field-beta")
    assert caught.value.code == ErrorCode.hook_conflict
    for part in (
        "mlx_lm.models.qwen3_next.Qwen3NextAttention",
        "field-alpha",
        "models first, second",
        "field-beta",
        "model third",
    ):
        assert part in caught.value.message
    assert (changed(before, everything()), host.guard.owners()) == ([], owners)
    while not running.finished:
        output = running.step()
        tokens += output.tokens if output else ()
    assert tokens == answer(second) == truth
    assert answered()["beta"] == 0
    first.close()
    assert host.refused("third", "qwen3_5", "field-beta").code == ErrorCode.hook_conflict
    second.close()
    third = host.load("third", "qwen3_5", "field-beta")
    assert len(answer(third)) == 12
    assert answered()["beta"] > 0
    third.close()


def test_a_load_that_fails_behind_its_patch(host: Host) -> None:
    """The engine gives up what a backend claimed and patched in a load that it did not finish."""
    configured = LoadBody(target=str(host.folder / "llama"), backend="field-alpha")
    before = everything()
    original = vars(llama.Attention)["__call__"]
    patched: list[bool] = []

    def progress(stage: str, *_: object) -> None:
        if stage == "patched":
            patched.append(vars(llama.Attention)["__call__"] is not original)
            raise Withdrawn("no longer wanted")

    with pytest.raises(Withdrawn):
        load(host.engine, "m", configured, progress)
    assert patched == [True]
    assert not host.guard.owners()
    assert not changed(before, everything())


def test_unusable_backends(host: Host, folder: Path, tmp_path: Path) -> None:
    """One that cannot be imported, one that is none, and two of one name are named as such."""
    error = host.refused("m", "llama", "broken")
    assert error.code == ErrorCode.load_failed
    assert "field-backends 1.0" in error.message
    assert "warp_kernels" in error.message
    error = host.refused("m", "llama", "hollow")
    assert error.code == ErrorCode.load_failed
    assert "lacks the method prepare" in error.message
    with on_path(install(tmp_path / "site", "other-backends")):
        error = host.refused("m", "llama", "field-beta")
    assert error.code == ErrorCode.unsupported
    for part in ("field-backends 1.0", "other-backends 1.0"):
        assert part in error.message


def test_models_without_hooks_run_stock_code(host: Host) -> None:
    """A plain mlx-lm model in this process keeps classes and code, also inside a hooked pass."""
    stock: Any = load_stock(host.folder / "llama")[0]
    before = code_paths(stock)
    ours = host.load("m", "llama", "dflash", "draft")
    plain = host.load("p", "llama", "dflash")
    seen: list[bool] = []

    class Spy(nn.Module):
        """Looks around from within a pass."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(code_paths(stock) == before)
            return self.inner(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    layer: Any = ours.model.target.layers[1]  # pyright: ignore[reportAttributeAccessIssue]
    truth = answer(ours)
    layer.mlp = Spy(layer.mlp)
    assert answer(ours) == truth == answer(plain)
    assert all(seen)
    assert len(seen) > 10
    for model in (ours, plain):
        model.close()
    assert code_paths(stock) == before
