"""The long random life of an engine once more, in a worker process and over its socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    Failed,
    GenerateBody,
    Load,
    LoadBody,
    Loaded,
    LoadFailed,
    Unload,
    Unloaded,
)

from ..process.scripted_supervisor import EPOCH, ScriptedSupervisor
from .test_soak import Member, Soak, make_members

pytestmark = pytest.mark.slow

OPERATIONS = 200

__all__: list[str] = []


@dataclass(frozen=True)
class Said:
    """A finished answer."""

    tokens: tuple[int, ...]


class RemoteAnswer:
    """A request in the worker, as the soak holds it."""

    def __init__(self, supervisor: ScriptedSupervisor, id: bytes) -> None:
        self._supervisor = supervisor
        self.id = id

    @property
    def ended(self) -> bool:
        return self._supervisor.answers[self.id].ended

    def wait(self) -> Said:
        answers = self._supervisor.end_of(self.id)
        if isinstance(answers.failed, Failed):
            raise DflashError(answers.failed.code, answers.failed.message)
        return Said(tuple(answers.tokens))

    def cancel(self) -> None:
        self._supervisor.cancel(self.id)


class RemoteHost:
    """What the soak does with a host, done with a worker by its supervisor's messages."""

    def __init__(self, supervisor: ScriptedSupervisor) -> None:
        self._supervisor = supervisor
        self._running: dict[bytes, tuple[str, RemoteAnswer]] = {}
        self.loaded: set[str] = set()

    def load(
        self, name: str, target: Path, draft: Path | None, block_tokens: int | None = None
    ) -> None:
        if name in self.loaded:
            return  # a supervisor asks for nothing that is there
        body = LoadBody(
            target=str(target), draft=str(draft) if draft else None, block_tokens=block_tokens
        )
        self._supervisor.send(Load(epoch=EPOCH, model=name), body)
        self._until(Loaded | LoadFailed)
        assert isinstance(self._supervisor.messages[-1].header, Loaded)
        self.loaded.add(name)

    def unload(self, name: str, drain_s: float = 0.0) -> None:
        until_s = time.monotonic() + drain_s
        for model, answer in self._running.values():
            if model == name and time.monotonic() < until_s and not answer.ended:
                self._supervisor.end_of(answer.id)
        self._supervisor.send(Unload(epoch=EPOCH, model=name))
        self._until(Unloaded)
        self.loaded.discard(name)

    def generate(
        self, name: str, *, tokens: tuple[int, ...], max_tokens: int, ignore_eos: bool
    ) -> RemoteAnswer:
        body = GenerateBody(tokens=tokens, max_tokens=max_tokens, ignore_eos=ignore_eos)
        answer = RemoteAnswer(self._supervisor, self._supervisor.assign(name, body))
        self._running[answer.id] = (name, answer)
        return answer

    def _until(self, kind: object) -> None:
        messages = self._supervisor.messages
        messages.clear()
        self._supervisor.receive_until(
            lambda: bool(messages) and isinstance(messages[-1].header, kind)  # pyright: ignore[reportArgumentType]
        )


@pytest.fixture
def supervisor() -> Iterator[ScriptedSupervisor]:
    with ScriptedSupervisor() as supervisor:
        supervisor.start()
        supervisor.register()
        yield supervisor


def test_200_random_operations_leave_a_worker_as_it_was(
    supervisor: ScriptedSupervisor, tmp_path: Path
) -> None:
    """Every completed output is its solo run's, every other end was caused; after the last unload
    the process holds at most 2 % more than when every model had been there once.
    """
    assert supervisor.worker is not None
    process = psutil.Process(supervisor.worker.pid)
    members: dict[str, Member] = make_members(tmp_path)
    host = RemoteHost(supervisor)
    soak = Soak(host, members, 2)
    soak.solo()
    start_bytes = process.memory_info().rss
    for _ in range(OPERATIONS):
        soak.operate()
    soak.leave()
    pong = supervisor.ping()
    assert pong.active == 0
    assert process.memory_info().rss <= 1.02 * start_bytes
    assert not host.loaded
    assert process.is_running()
    assert soak.seen["equal"] >= 30, soak.seen
    assert {ErrorCode.cancelled, ErrorCode.shutting_down} <= set(soak.seen), soak.seen
