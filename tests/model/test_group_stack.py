"""A group on the whole stack: real models of random weights in one worker process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dflashd.protocol import Client, Daemon
from dflashd.protocol.generation import Completion
from dflashd.protocol.messages import SnapshotBody

from ..process.daemon_process import wait_for
from ..tiny import Shape, make_draft, make_target

LARGE = Shape(hidden=512, layers=8, heads=8, kv_heads=8, intermediate=1536)
TOKENS = 100


@pytest.fixture
def client(short_dir: Path) -> Generator[Client]:
    """A client of a daemon with a small and a large model in one group."""
    small, draft = make_target(short_dir / "small"), make_draft(short_dir / "draft")
    large = make_target(short_dir / "large", LARGE)
    run = short_dir / "run"
    cache = "cache = { enabled = false }"
    config = short_dir / "config.toml"
    config.write_text(
        f'[daemon]\nruntime_dir = "{run}"\nstate_dir = "{short_dir / "state"}"\n'
        f"ping_interval_s = 0.2\n"
        f'[models.small]\ntarget = "{small}"\ndraft = "{draft}"\ngroup = "g"\n{cache}\n'
        f'[models.large]\ntarget = "{large}"\ngroup = "g"\n{cache}\n'
    )
    with (
        Daemon(config, runtime_dir=run, log=short_dir / "daemon.log") as daemon,
        daemon.client() as connected,
    ):
        yield connected


def test_one_leaves_and_gives_its_memory_back_while_the_other_serves(client: Client):
    """Load and unload of one model change no token of the other's stream, and memory returns."""
    alone = ask(client)
    before_bytes = client.status().workers[0].memory_bytes
    enough = threading.Event()

    def keep_asking() -> list[Completion]:
        answers: list[Completion] = []
        while not enough.is_set():
            answers.append(ask(client))
        return answers

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(keep_asking)
        try:
            client.spawn("large")
            size_bytes = large(client.status())
            assert size_bytes > 50 * 2**20
            wait_for(
                "it is seen in the worker's memory",
                lambda: client.status().workers[0].memory_bytes > before_bytes + 0.8 * size_bytes,
            )
            client.retire("large")
            assert large(client.status()) == 0
        finally:
            enough.set()
        answers = reading.result()
    assert {answer.tokens for answer in answers} == {alone.tokens}
    assert {answer.stats.worker_pid for answer in answers} == {alone.stats.worker_pid}
    wait_for(
        "its memory is measured as free",
        lambda: client.status().workers[0].memory_bytes < before_bytes + 0.2 * size_bytes,
    )


def ask(client: Client) -> Completion:
    return client.generate("small", "the quick", max_tokens=TOKENS, ignore_eos=True).wait()


def large(snapshot: SnapshotBody) -> int:
    """What the large model takes."""
    model = next(model for model in snapshot.models if model.name == "large")
    return model.loaded.memory_bytes if model.loaded else 0
