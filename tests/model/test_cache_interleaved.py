"""Requests of three models interleaved, while their caches are replaced, cleared and retired."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dflashd.protocol.messages import CacheSettings, GenerateBody, LoadBody
from dflashd.worker.cache.open import OpenCache, open_cache
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.mlx_engine import MlxEngine, MlxModel

from ..tiny import make_draft, make_target
from .families import HYBRIDS, make_member
from .whole_load import load

OFF = OpenCache(manager=None, cuttable=True)
SHARED = tuple((11 * n) % 280 + 5 for n in range(80))


class House:
    """One engine with three models: drafted, plain, and one whose state cannot be cut."""

    def __init__(self, folder: Path) -> None:
        make_target(folder / "a")
        make_draft(folder / "d")
        make_target(folder / "b", seed=5)
        make_member(folder / "c", HYBRIDS["llama with windows"])
        self.folder = folder
        self.engine = MlxEngine()
        self.models = {
            "a": self.load("a", draft=str(folder / "d")),
            "b": self.load("b"),
            "c": self.load("c"),
        }
        self.caches = {name: model.cache for name, model in self.models.items()}

    def load(self, name: str, draft: str | None = None) -> MlxModel:
        body = LoadBody(
            target=str(self.folder / name),
            draft=draft,
            prefill_chunk_tokens=32,
            cache=CacheSettings(
                ram_bytes=300_000, disk_bytes=10**7, disk_dir=str(self.folder / "l2"),
                reuse="aligned",
            ),
        )  # fmt: skip
        model = load(self.engine, name, body)
        assert isinstance(model, MlxModel)
        return model

    def begin(self, name: str, cut: int, cache: OpenCache) -> Generation:
        tokens = (*SHARED[:cut], ord(name), cut, *SHARED[:20])
        body = GenerateBody(tokens=tokens, max_tokens=8, ignore_eos=True)
        return Generation(self.models[name].model, body, cache)

    def disturb(self, chance: random.Random) -> None:
        """Replace, clear or retire some model's cache under its requests."""
        name = chance.choice("abc")
        model = self.models[name]
        settings = model.model.defaults.cache
        match chance.randrange(4):
            case 0:
                changed = CacheSettings(ram_bytes=chance.choice((100_000, 10**6)), reuse="aligned")
                self.resolve(name, changed)
            case 1:
                self.resolve(name, settings)
            case 2:
                self.engine.caches.shutdown(model.model.identity, timeout_s=10)
            case _:
                manager = self.caches[name].manager
                if manager is not None and manager.is_open:
                    manager.clear()

    def resolve(self, name: str, settings: CacheSettings) -> None:
        model = self.models[name].model
        self.caches[name] = open_cache(
            self.engine.caches, model.identity, model.fingerprint, settings,
            model.target.make_caches(),
        )  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


@dataclass
class Running:
    """A request under way, or how it ended."""

    name: str
    cut: int
    generation: Generation
    tokens: list[int] = field(default_factory=list[int])

    def step(self) -> None:
        output = self.generation.step()
        self.tokens += output.tokens if output is not None else ()


def traffic(house: House, chance: random.Random, count: int) -> list[Running]:
    """``count`` finished requests, four at a time, some cancelled, caches disturbed meanwhile."""
    running: list[Running] = []
    done: list[Running] = []
    while len(done) < count:
        if len(running) < 4:
            name, cut = chance.choice("abc"), chance.choice((40, 66, 80))
            running.append(Running(name, cut, house.begin(name, cut, house.caches[name])))
        if chance.random() < 0.15:
            house.disturb(chance)
        request = chance.choice(running)
        request.step()
        cancelled = chance.random() < 0.02
        if request.generation.finished or cancelled:
            request.generation.close()
            running.remove(request)
            done += [request] if request.generation.finished else []
    for request in running:
        request.generation.close()
    return done


@pytest.mark.parametrize("seed", range(2))
def test_no_request_sees_another_cache(house: House, seed: int) -> None:
    """Whatever happens to the caches meanwhile, each request ends as it does alone and uncached."""
    done = traffic(house, random.Random(seed), 24)
    alone: dict[tuple[str, int], list[int]] = {}
    for request in done:
        key = (request.name, request.cut)
        if key not in alone:
            solo = Running(*key, house.begin(*key, OFF))
            while not solo.generation.finished:
                solo.step()
            alone[key] = solo.tokens
        assert request.tokens == alone[key]
    assert any(request.generation.statistics().cache_hit != "miss" for request in done)
