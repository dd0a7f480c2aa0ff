"""A long random life of one engine: models of four families come, answer and go."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import mlx.core as mx
import psutil
import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker import Host
from dflashd.worker.engine import memory
from dflashd.worker.hooks.guard import GUARD

from .families import HYBRIDS, MEMBERS, Family, make_member, make_members_draft

pytestmark = pytest.mark.slow

OPERATIONS = 80
TOKENS = 24
AT_ONCE = 8
PROMPTS = ((77, 3, 21, 40, 5), (12, 7, 30, 61, 8, 9, 10, 11, 12), (99, 98, 97))
FAMILIES: dict[str, Family] = {
    "qwen3": MEMBERS["qwen3"],
    "gpt_oss": HYBRIDS["gpt_oss"],
    "qwen3_5": HYBRIDS["qwen3_5"],
    "lfm2": HYBRIDS["lfm2"],
}
"""Plain attention, sliding windows, gated delta with attention, short convolutions."""


class Said(Protocol):
    """An answer that has come."""

    @property
    def tokens(self) -> tuple[int, ...]: ...


class Asked(Protocol):
    """A request."""

    def wait(self) -> Said: ...
    def cancel(self) -> None: ...


class Models(Protocol):
    """What is soaked: a host, or a worker process behind its socket."""

    def load(
        self, name: str, target: Path, draft: Path | None, /, *, block_tokens: int | None
    ) -> object: ...
    def unload(self, name: str, /, *, drain_s: float = 0.0) -> None: ...
    def generate(
        self, model: str, /, *, tokens: tuple[int, ...], max_tokens: int, ignore_eos: bool
    ) -> Asked: ...


@dataclass(frozen=True)
class Member:
    """One of the six models. Two of them share a target, one has no draft."""

    target: Path
    draft: Path | None


@dataclass
class Running:
    """A request that has not been read, and why it may fail."""

    model: str
    prompt: tuple[int, ...]
    answer: Asked
    excuses: set[ErrorCode] = field(default_factory=set[ErrorCode])


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Member]:
    return make_members(tmp_path_factory.mktemp("members"))


def make_members(folder: Path) -> dict[str, Member]:
    """Six models of four families."""
    made: dict[str, Member] = {}
    for name, family in FAMILIES.items():
        target = make_member(folder / name / "target", family)
        made[name] = Member(target, make_members_draft(folder / name / "draft", family))
    made["qwen3 plain"] = Member(made["qwen3"].target, None)
    other = HYBRIDS["qwen3_5"]
    made["qwen3_5 too"] = Member(
        made["qwen3_5"].target, make_members_draft(folder / "too" / "draft", other)
    )
    return {name.replace(" ", "-"): member for name, member in made.items()}


class Soak:
    """Seeded operations on a host, and what has to come of them."""

    def __init__(self, host: Models, members: dict[str, Member], seed: int) -> None:
        self.host = host
        self.members = members
        self.random = random.Random(seed)
        self.loaded: set[str] = set()
        self.running: list[Running] = []
        self.truth: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self.seen: Counter[str] = Counter()

    def solo(self) -> None:
        """Learn what each model says when it is alone."""
        for name in self.members:
            self.load(name, None)
            for prompt in PROMPTS:
                self.truth[name, prompt] = self.start(name, prompt).wait().tokens
            self.host.unload(name)
            self.loaded.discard(name)

    def load(self, name: str, block_tokens: int | None) -> None:
        member = self.members[name]
        self.host.load(name, member.target, member.draft, block_tokens=block_tokens)
        self.loaded.add(name)

    def start(self, name: str, prompt: tuple[int, ...]) -> Asked:
        return self.host.generate(name, tokens=prompt, max_tokens=TOKENS, ignore_eos=True)

    def operate(self) -> None:
        """One random operation."""
        name = self.random.choice(list(self.members))
        kinds = {"load": 20, "generate": 50, "cancel": 12, "unload": 12, "read": 6}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        if kind == "load":
            self.load(name, self.random.choice([None, 2, 3]))
        elif kind == "generate":
            if self.loaded and self.random.random() < 0.9:  # else many would find nothing there
                name = self.random.choice(sorted(self.loaded))
            self.generate(name)
        elif kind == "unload":
            self.unload(name)
        elif self.running:
            running = self.running.pop(self.random.randrange(len(self.running)))
            if kind == "cancel":
                running.excuses.add(ErrorCode.cancelled)
                running.answer.cancel()
            self.check(running)
        self.seen[kind] += 1

    def generate(self, name: str) -> None:
        prompt = self.random.choice(PROMPTS)
        running = Running(name, prompt, self.start(name, prompt))
        if name not in self.loaded:
            running.excuses.add(ErrorCode.not_found)
        self.running.append(running)
        if len(self.running) > AT_ONCE:
            self.check(self.running.pop(0))

    def unload(self, name: str) -> None:
        for running in self.running:
            if running.model == name:
                running.excuses.add(ErrorCode.shutting_down)
        self.host.unload(name, drain_s=self.random.choice([0.0, 0.0, 5.0]))
        self.loaded.discard(name)

    def check(self, running: Running) -> None:
        """Exactly one end: the solo run's tokens, or a failure with an excuse."""
        try:
            tokens = running.answer.wait().tokens
        except DflashError as error:
            if error.code not in running.excuses:
                raise
            self.seen[error.code] += 1
            return
        assert tokens == self.truth[running.model, running.prompt], running.model
        self.seen["equal"] += 1

    def leave(self) -> None:
        """Read what runs, unload what is there."""
        for running in self.running:
            self.check(running)
        self.running.clear()
        for name in self.loaded:
            self.host.unload(name)
        self.loaded.clear()


def resident_bytes() -> int:
    """What the system counts for this process once spare memory is given back."""
    memory.reclaim()
    return psutil.Process(os.getpid()).memory_info().rss


@pytest.mark.parametrize("seed", [1])
def test_random_operations_leave_nothing(members: dict[str, Member], seed: int) -> None:
    """Every completed output is its solo run's, every other end was caused; after the last unload
    mlx holds what it held, and the process at most 2 % more, than when every model had been there
    once.
    """
    with Host() as host:
        soak = Soak(host, members, seed)
        soak.solo()
        active_bytes, start_bytes = mx.get_active_memory(), resident_bytes()
        for _ in range(OPERATIONS):
            soak.operate()
        soak.leave()
        assert host.statistics().models == ()
        assert not GUARD.owners()
        assert mx.get_active_memory() <= 1.02 * active_bytes + 1024
        assert resident_bytes() <= 1.02 * start_bytes
        assert soak.seen["equal"] >= 15, soak.seen
        assert {"cancelled", "shutting_down", "not_found"} <= set(soak.seen), soak.seen
