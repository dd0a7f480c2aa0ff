"""The engine loop driven as a library: real models, no process, no socket."""

from __future__ import annotations

import os
import time
from pathlib import Path

import mlx.core as mx
import pytest

from dflashd.protocol.messages import GenerateBody, LoadBody
from dflashd.worker.engine.mlx_engine import MlxEngine
from dflashd.worker.loop.loop import Loop
from dflashd.worker.loop.request import Assignment

from ..tiny import make_draft, make_target
from .scripted_engine import Recorder


class Host:
    """An application that runs models in its own process and drives the loop itself."""

    def __init__(self) -> None:
        self.told = Recorder()
        self.loop = Loop(MlxEngine(), self.told, clock=time.monotonic, pid=os.getpid())

    def load(self, name: str, target: Path, draft: Path | None = None) -> None:
        self.loop.load(name, LoadBody(target=str(target), draft=str(draft) if draft else None))
        assert self.loop.step()

    def ask(self, id: bytes, model: str, prompt: str) -> None:
        body = GenerateBody(prompt=prompt, max_tokens=24, ignore_eos=True)
        self.loop.assign(Assignment(id=id, model=model, body=body))

    def run(self) -> None:
        while self.loop.step():
            pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two targets, and a draft for the first."""
    make_target(tmp_path / "t")
    make_draft(tmp_path / "d")
    make_target(tmp_path / "u", seed=5)
    return tmp_path


def test_library_two_models_at_once(folder: Path) -> None:
    """Requests of two models that run together answer as they do one after the other."""
    host = Host()
    host.load("dflash", folder / "t", folder / "d")
    host.load("plain", folder / "u")
    asked = [(b"a", "dflash", "the quick"), (b"b", "plain", "what is"), (b"c", "dflash", "for")]
    for id, model, prompt in asked:
        host.ask(b"alone" + id, model, prompt)
        host.run()
    for id, model, prompt in asked:
        host.ask(b"together" + id, model, prompt)
    host.run()
    for id, model, _ in asked:
        assert host.told.text_of(b"together" + id) == host.told.text_of(b"alone" + id) != ""
        assert host.told.results[b"together" + id].model == model


def test_library_unload_gives_memory_back(folder: Path) -> None:
    """After an unload in the middle of a request, mlx holds what it held before the load."""
    host = Host()
    host.load("plain", folder / "u")
    host.loop.unload("plain")
    before_bytes = mx.get_active_memory()
    host.load("dflash", folder / "t", folder / "d")
    assert mx.get_active_memory() > before_bytes + 1_000_000
    host.ask(b"a", "dflash", "the quick")
    for _ in range(3):
        assert host.loop.step()
    host.loop.unload("dflash")
    assert host.told.endings(b"a") == [("failed", "shutting_down")]
    assert mx.get_active_memory() - before_bytes < 10_000
    assert mx.get_cache_memory() == 0


def test_library_failed_load_leaves_no_memory(folder: Path) -> None:
    """A draft that does not fit fails the load, and nothing of the target stays."""
    host = Host()
    before_bytes = mx.get_active_memory()
    make_draft(folder / "wrong", target_layer_ids=(1, 4, 5, 9))
    host.load("m", folder / "t", folder / "wrong")
    assert host.told.of("m")[-1] == ("load_failed", "load_failed")
    assert mx.get_active_memory() - before_bytes < 10_000
