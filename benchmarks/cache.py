"""What the prefix cache wins, what it costs where nothing repeats, and how large its states are."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

from msgspec import structs

from dflashd.protocol.messages import CacheSettings, GenerateBody, Sampling
from dflashd.worker.cache.open import OpenCache, open_cache
from dflashd.worker.cache.registry import CacheRegistry
from dflashd.worker.decoding.sampling import Sampler
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.mlx_engine import MlxEngine, MlxModel
from dflashd.worker.errand import Errand

from .workload import PAIR, SILENCE

PREFIX_TOKENS = 2000
TAIL_TOKENS = 24
ROUNDS = 10
SINGLE_SLOT_ROUNDS = 3
FRESH_PROMPTS = 4
FRESH_TOKENS = 512
DECODED_TOKENS = 64
DRAFTS = {"a": "smollm2-135m-dflash", "b": "smollm2-135m-dflash-1l"}
RAM_ONLY = CacheSettings()
OFF = OpenCache(manager=None, cuttable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request: to its first token, from there to its end, and what came after that."""

    first_s: float
    rest_s: float
    close_s: float
    hit: str


def figures() -> dict[str, float]:
    """Ratios of times to the first token, of throughputs, and bytes."""
    with tempfile.TemporaryDirectory(prefix="dflashd-bench") as folder:
        house = House(Path(folder))
        cold = {name: statistics.median(house.cold(name) for _ in range(2)) for name in DRAFTS}
        alone = house.alone("a")
        warm = house.alternating()
        single = house.single_slot()
        result = {f"cold_ttft_ms_{name}": 1e3 * cold[name] for name in DRAFTS}
        for name in DRAFTS:
            result[f"warm_over_cold_ttft_ratio_{name}"] = warm[name] / cold[name]
            result[f"single_slot_over_cold_ttft_ratio_{name}"] = single[name] / cold[name]
        result["warm_over_cold_ttft_ratio"] = max(warm[n] / cold[n] for n in DRAFTS)
        result["single_slot_over_cold_ttft_ratio"] = min(single[n] / cold[n] for n in DRAFTS)
        result["alternating_over_alone_ttft_ratio"] = warm["a"] / alone
        result["disk_over_cold_ttft_ratio"] = house.from_disk("a") / cold["a"]
        return result | house.cost() | house.sizes("a")


class House:
    """Two models over one target in one engine, each with a cache in memory and on disk."""

    def __init__(self, folder: Path) -> None:
        self._settings = CacheSettings(
            disk_bytes=4 * 10**9, disk_dir=str(folder), ram_bytes=2 * 10**9
        )
        self._engine = MlxEngine()
        self._models = {name: self._load(name) for name in DRAFTS}
        self._fresh: Iterator[int] = count(1)

    def cold(self, name: str) -> float:
        """Seconds to the first token without a cache."""
        return self._visit(name, OFF, self._prompt(name)).first_s

    def alone(self, name: str) -> float:
        """Median warm seconds to the first token, no other model asked meanwhile."""
        self._visit(name, self._models[name].cache, self._prompt(name))
        return statistics.median(self._warm(name) for _ in range(ROUNDS))

    def alternating(self) -> dict[str, float]:
        """The same for two models that are asked in turn; the first round fills the caches."""
        times: dict[str, list[float]] = {name: [] for name in DRAFTS}
        for name in DRAFTS:
            self._visit(name, self._models[name].cache, self._prompt(name))
        for _ in range(ROUNDS):
            for name in DRAFTS:
                times[name].append(self._warm(name))
        return {name: statistics.median(values) for name, values in times.items()}

    def single_slot(self) -> dict[str, float]:
        """The same with one slot that is replaced at each switch, as engines have it today."""
        times: dict[str, list[float]] = {name: [] for name in DRAFTS}
        slot = CacheRegistry()
        for _ in range(SINGLE_SLOT_ROUNDS):
            for name in DRAFTS:
                slot.shutdown()
                model = self._models[name].model
                layers = model.target.make_caches()
                cache = open_cache(slot, model.identity, model.fingerprint, RAM_ONLY, layers)
                times[name].append(self._visit(name, cache, self._prompt(name)).first_s)
        return {name: statistics.median(values) for name, values in times.items()}

    def from_disk(self, name: str) -> float:
        """Seconds to the first token after a restart: only files are left."""
        manager = self._models[name].cache.manager
        assert manager is not None
        assert manager.flush(60)
        self._models[name].close()
        self._models[name] = self._load(name)
        visit = self._visit(name, self._models[name].cache, self._prompt(name))
        assert visit.hit == "l2_prefix", visit.hit
        return visit.first_s

    def cost(self) -> dict[str, float]:
        """Throughput with the cache on over off, where no two prompts begin alike."""
        runs: dict[bool, list[Visit]] = {True: [], False: []}
        model = self._models["a"]
        for n in range(2 * FRESH_PROMPTS):
            order = (True, False) if n % 2 else (False, True)
            # The same prompt for both: another one would be accepted in other lengths. Only the run
            # with the cache stores it, and no later prompt begins like it.
            prompt = self._tokens(next(self._fresh), FRESH_TOKENS)
            for on in order:
                cache = model.cache if on else OFF
                runs[on].append(self._visit("a", cache, prompt, DECODED_TOKENS))
        on, off = runs[True], runs[False]

        def total(visits: list[Visit]) -> float:
            return sum(v.first_s + v.rest_s + v.close_s for v in visits)

        return {
            "cache_on_over_off_throughput_ratio": total(off) / total(on),
            "cache_on_over_off_prefill_ratio": sum(v.first_s for v in off)
            / sum(v.first_s for v in on),
            "cache_on_over_off_decode_ratio": sum(v.rest_s for v in off)
            / sum(v.rest_s for v in on),
            "store_ms": 1e3 * statistics.mean(v.close_s for v in on),
        }

    def sizes(self, name: str) -> dict[str, float]:
        """Bytes that a cached token takes in memory, and over the raw state's."""
        model = self._models[name]
        report = model.cache_state()
        per_token = report.ram_bytes / report.ram_tokens
        decoder = model.model.decoder("dflash", Sampler(Sampling(), Sampling()))
        decoder.first([5, 6, 7, 8])
        raw = sum(state.nbytes for part in decoder.capture(4) for state in part or ()) / 4
        return {"bytes_per_token": per_token, "bytes_per_token_over_raw_ratio": per_token / raw}

    def _warm(self, name: str) -> float:
        visit = self._visit(name, self._models[name].cache, self._prompt(name))
        assert visit.hit == "l1_prefix", visit.hit
        return visit.first_s

    def _load(self, name: str) -> MlxModel:
        body = structs.replace(PAIR, draft=DRAFTS[name], cache=self._settings)
        prepared = self._engine.prepare(name, body, Errand(SILENCE))
        model = self._engine.load(name, body, SILENCE, prepared)
        assert isinstance(model, MlxModel)
        return model

    def _prompt(self, name: str) -> tuple[int, ...]:
        """The model's shared prefix, and a tail that was never asked before."""
        prefix = self._tokens(0 if name == "a" else -1, PREFIX_TOKENS)
        return prefix + self._tokens(next(self._fresh), TAIL_TOKENS)

    @staticmethod
    def _tokens(seed: int, length: int) -> tuple[int, ...]:
        return tuple(1000 + (seed * 7919 + n * 104729) % 40000 for n in range(length))

    def _visit(
        self, name: str, cache: OpenCache, prompt: tuple[int, ...], tokens: int = 2
    ) -> Visit:
        body = GenerateBody(tokens=prompt, max_tokens=tokens, ignore_eos=True)
        moments = [time.perf_counter()]
        generation = Generation(self._models[name].model, body, cache)
        while generation.step() is None:
            pass
        moments.append(time.perf_counter())
        while not generation.finished:
            generation.step()
        moments.append(time.perf_counter())
        hit = generation.statistics().cache_hit
        generation.close()
        moments.append(time.perf_counter())
        first, rest, close = (b - a for a, b in pairwise(moments))
        return Visit(first_s=first, rest_s=rest, close_s=close, hit=hit)
