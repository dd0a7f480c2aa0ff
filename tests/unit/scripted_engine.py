"""A scripted engine, a clock that only steps move, and a recorder of what a loop tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dflashd.protocol.errors import DflashError
from dflashd.protocol.messages import (
    CacheBody,
    ChunkBody,
    DoneBody,
    GenerateBody,
    LoadBody,
    LoadedBody,
)
from dflashd.worker.engine.border import Statistics
from dflashd.worker.errand import Errand, Progress
from dflashd.worker.loop.loop import Loop
from dflashd.worker.loop.request import Assignment


@dataclass
class Clock:
    """Seconds that pass only when someone says so."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


FACTS = Statistics(
    finish_reason="stop",
    engine="dflash",
    block_tokens=8,
    cycles=3,
    acceptance_length_tokens=2.0,
    prompt_tokens=4,
    cache_miss_reason="cold",
    generated_tokens=6,
    reasoning_tokens=2,
    prefill_ms=1.0,
    decode_ms=2.0,
)
"""Of every scripted generation."""


@dataclass(frozen=True)
class Step:
    """What one step does: takes time, then says something, or nothing, or raises."""

    says: ChunkBody | None = None
    takes_s: float = 0.01
    raises: Exception | None = None


PREFILL = Step(takes_s=1.0)


def say(text: str, takes_s: float = 0.01) -> Step:
    return Step(says=ChunkBody(tokens=(1, 2), text=text), takes_s=takes_s)


def talk(count: int, takes_s: float = 0.01) -> list[Step]:
    return [say(str(n), takes_s) for n in range(count)]


@dataclass
class ScriptedGeneration:
    steps: list[Step]
    clock: Clock
    model: ScriptedModel
    finished: bool = False
    closed: int = 0

    def step(self) -> ChunkBody | None:
        assert not self.finished
        assert not self.closed
        step = self.steps.pop(0)
        self.clock.advance(step.takes_s)
        if step.raises is not None:
            raise step.raises
        self.finished = not self.steps
        return step.says

    def statistics(self) -> Statistics:
        return FACTS

    def close(self) -> None:
        self.closed += 1


@dataclass
class ScriptedModel:
    engine: ScriptedEngine
    cached: int = 3
    closed: int = 0
    facts: LoadedBody = field(
        default_factory=lambda: LoadedBody(
            digest="d1",
            engine="dflash",
            block_tokens=8,
            context_tokens=100,
            memory_bytes=1000,
            device="cpu",
            dtype="float32",
        )
    )

    def begin(self, body: GenerateBody) -> ScriptedGeneration:
        script = self.engine.scripts[body.prompt or ""]
        if isinstance(script, Exception):
            raise script
        generation = ScriptedGeneration(list(script), self.engine.clock, self)
        self.engine.generations.append(generation)
        return generation

    def cache_state(self) -> CacheBody:
        return CacheBody(state="open", ram_entries=self.cached)

    def clear_cache(self) -> None:
        self.cached = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class ScriptedEngine:
    """``scripts`` by prompt; ``loads`` by model: what happens between start and end of a load."""

    clock: Clock
    scripts: dict[str, Sequence[Step] | Exception] = field(default_factory=dict)
    preparations: dict[str, Callable[[Errand], None]] = field(default_factory=dict)
    loads: dict[str, Callable[[Progress], None]] = field(default_factory=dict)
    generations: list[ScriptedGeneration] = field(default_factory=list)
    loaded: list[tuple[str, LoadBody]] = field(default_factory=list)
    reclaims: int = 0
    on_reclaim: Callable[[], None] = lambda: None

    def prepare(self, name: str, body: LoadBody, errand: Errand) -> str:
        self.preparations.get(name, lambda _: None)(errand)
        return f"{name} prepared"

    def load(
        self, name: str, body: LoadBody, progress: Progress, prepared: object
    ) -> ScriptedModel:
        assert prepared == f"{name} prepared"
        self.loads.get(name, lambda _: None)(progress)
        self.loaded.append((name, body))
        return ScriptedModel(self)

    def held_bytes(self) -> int:
        return 12345

    def reclaim(self) -> None:
        self.reclaims += 1
        self.on_reclaim()

    def ran_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)


@dataclass
class Recorder:
    """Effects as a list of (kind, whom, detail), in order."""

    told: list[tuple[str, object, object]] = field(default_factory=list)
    results: dict[bytes, DoneBody] = field(default_factory=dict)
    on_chunk: Callable[[bytes], None] = lambda _: None

    def chunk(self, id: bytes, seq: int, body: ChunkBody) -> None:
        self.on_chunk(id)
        self.told.append(("chunk", id, (seq, body.text)))

    def done(self, id: bytes, body: DoneBody) -> None:
        self.results[id] = body
        self.told.append(("done", id, body.finish_reason))

    def failed(self, id: bytes, error: DflashError) -> None:
        self.told.append(("failed", id, str(error.code)))

    def progress(self, model: str, stage: str, done: int, total: int, unit: str) -> None:
        self.told.append(("progress", model, (stage, done, total)))

    def loaded(self, model: str, facts: LoadedBody) -> None:
        self.told.append(("loaded", model, facts.digest))

    def load_failed(self, model: str, error: DflashError) -> None:
        self.told.append(("load_failed", model, str(error.code)))

    def unloaded(self, model: str) -> None:
        self.told.append(("unloaded", model, None))

    def cache_state(self, id: bytes, body: CacheBody) -> None:
        self.told.append(("cache_state", id, body.ram_entries))

    def of(self, whom: object) -> list[tuple[str, object]]:
        """What was told about one request or model."""
        return [(kind, detail) for kind, about, detail in self.told if about == whom]

    def text_of(self, id: bytes) -> str:
        """The text of a request's chunks."""
        return "".join(
            str(detail[1])
            for kind, about, detail in self.told
            if (kind, about) == ("chunk", id) and isinstance(detail, tuple)
        )

    def endings(self, whom: object) -> list[tuple[str, object]]:
        """How a request ended: exactly one entry once it has."""
        return [entry for entry in self.of(whom) if entry[0] in ("done", "failed")]


class Stage:
    """A loop on a scripted engine, and short words for what tests do with it.

    With ``aside`` a load is prepared when a test says so.
    """

    def __init__(
        self,
        *,
        models: Sequence[str] = ("m",),
        slow_consumer_s: float = 30.0,
        aside: bool = False,
    ) -> None:
        self.clock = Clock()
        self.engine = ScriptedEngine(self.clock)
        self.told = Recorder()
        self.commands: list[Callable[[Loop], None]] = []
        self.loop = Loop(
            self.engine,
            self.told,
            clock=self.clock,
            pid=77,
            intake=self._take_commands,
            slow_consumer_s=slow_consumer_s,
            aside=self._put_aside if aside else None,
        )
        self._asides: list[tuple[Callable[[], None], Callable[[], None], str]] = []
        for name in models:
            self.loop.load(name, LoadBody(target="t"))
            self.prepare(name)
            assert self.loop.step()
        self.told.told.clear()

    def prepare(self, name: str, which: int = 0) -> None:
        """Do what was put aside for the load of ``name``, the one in that place."""
        mine = [aside for aside in self._asides if aside[2] == name]
        if mine:
            self._asides.remove(mine[which])
            work, then, _ = mine[which]
            work()
            self.commands.append(lambda _: then())

    def _put_aside(self, name: str, work: Callable[[], None], then: Callable[[], None]) -> None:
        self._asides.append((work, then, name))

    def _take_commands(self) -> None:
        while self.commands:
            self.commands.pop(0)(self.loop)

    def ask(
        self,
        id: str,
        script: Sequence[Step] | Exception,
        *,
        model: str = "m",
        credit: int = 64,
        deadline_s: float | None = None,
    ) -> bytes:
        """Assign a request that will run ``script``."""
        self.engine.scripts[id] = script
        self.loop.assign(
            Assignment(
                id=id.encode(),
                model=model,
                body=GenerateBody(prompt=id),
                credit=credit,
                deadline_s=deadline_s,
                queued_ms=5,
                load_ms=7,
            )
        )
        return id.encode()

    def run(self, steps: int = 1000) -> int:
        """Step until there is nothing to do, or ``steps`` times; how many were done."""
        return next((n for n in range(steps) if not self.loop.step()), steps)
