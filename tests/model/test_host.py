"""A host on real tiny models: several families in this process, from several threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker import Host, LoadProgress
from dflashd.worker.hooks.guard import GUARD

from ..process.daemon_process import wait_for
from ..tiny import make_draft, make_target
from .families import HYBRIDS, MEMBERS, make_member, make_members_draft
from .held_memory import held_bytes

pytestmark = pytest.mark.slow

TOKENS = 40
PROMPTS = ((77, 3, 21, 40, 5), (12, 7, 30, 61), (99, 98, 97, 5, 6, 7, 8))
ROUNDS = 3
LIMIT_S = 120.0


@dataclass(frozen=True)
class Pair:
    """A target's folder and its draft's."""

    target: Path
    draft: Path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Two attention models with different weights, and a hybrid with recurrent layers."""
    folder = tmp_path_factory.mktemp("pairs")
    families = {"qwen3": MEMBERS["qwen3"], "hybrid": HYBRIDS["qwen3_5"]}
    made = {
        name: Pair(
            make_member(folder / name / "target", family),
            make_members_draft(folder / name / "draft", family),
        )
        for name, family in families.items()
    }
    llama = folder / "llama"
    return made | {"llama": Pair(make_target(llama / "target"), make_draft(llama / "draft"))}


def ask(host: Host, name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    answer = host.generate(name, tokens=prompt, max_tokens=TOKENS, ignore_eos=True)
    return answer.wait().tokens


@pytest.fixture(scope="module")
def solo(pairs: dict[str, Pair]) -> dict[tuple[str, tuple[int, ...]], tuple[int, ...]]:
    """What each model says to each prompt when it is alone in its host."""
    said: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    for name, pair in pairs.items():
        with Host() as host:
            host.load(name, pair.target, pair.draft)
            said |= {(name, prompt): ask(host, name, prompt) for prompt in PROMPTS}
    return said


def test_three_models_asked_while_they_change(
    pairs: dict[str, Pair],
    solo: dict[tuple[str, tuple[int, ...]], tuple[int, ...]],
) -> None:
    """Threads ask three models of two families while one is unloaded and another gets other
    settings: every answer is the solo run's, and in the end the memory is back.
    """
    before_bytes = held_bytes()
    host = Host()
    for name, pair in pairs.items():
        host.load(name, pair.target, pair.draft)
    assert host.statistics().hooks
    refusals: list[tuple[str, bool]] = []
    started = threading.Barrier(4, timeout=LIMIT_S)

    def keep_asking(name: str) -> int:
        started.wait()
        for n in range(ROUNDS * len(PROMPTS)):
            prompt = PROMPTS[n % len(PROMPTS)]
            try:
                assert ask(host, name, prompt) == solo[name, prompt]
            except DflashError as error:
                refusals.append((name, error.retryable))
                return n
        return ROUNDS * len(PROMPTS)

    with ThreadPoolExecutor(3) as pool:
        asking = {name: pool.submit(keep_asking, name) for name in pairs}
        started.wait()
        assert host.load("qwen3", pairs["qwen3"].target, pairs["qwen3"].draft, block_tokens=3)
        host.unload("llama")
        rounds = {name: asked.result(LIMIT_S) for name, asked in asking.items()}
    assert rounds["qwen3"] == rounds["hybrid"] == ROUNDS * len(PROMPTS)
    assert refusals in ([], [("llama", True)]), "an unloaded model refuses; it may have been done"
    held = {model.name: model for model in host.statistics().models}
    assert set(held) == {"qwen3", "hybrid"}
    assert held["qwen3"].loaded.block_tokens == 3
    host.shutdown()
    assert not GUARD.owners()
    wait_for("the memory is back", lambda: held_bytes() - before_bytes < 10_000)


def test_two_hosts_in_one_process(pairs: dict[str, Pair], solo: Any, tmp_path: Path) -> None:
    """Two hosts serve the same model and each its own at the same time, as if alone. Of one disk
    cache one of them writes, the other says that it is this process which does; when the first has
    gone, the second goes on with everything.
    """
    cache = {"disk_bytes": 2**26, "disk_dir": str(tmp_path)}
    pair = pairs["qwen3"]
    names = (("qwen3", "hybrid"), ("qwen3", "llama"))
    hosts = [Host(), Host()]
    for host, own in zip(hosts, names, strict=True):
        host.load("qwen3", pair.target, pair.draft, cache=cache)
        host.load(own[1], pairs[own[1]].target, pairs[own[1]].draft)
    reports = [host.cache("qwen3").disk for host in hosts]
    assert reports[0] == "on"
    assert reports[1].startswith("this process writes to this cache already")
    owners = {ownership.hooked: ownership.models for ownership in GUARD.owners()}
    assert [m for models in owners.values() for m in models].count("qwen3") >= 2

    def keep_asking(host: Host, name: str) -> None:
        for prompt in PROMPTS * 2:
            assert ask(host, name, prompt) == solo[name, prompt]

    with ThreadPoolExecutor(4) as pool:
        both = [(host, name) for host, own in zip(hosts, names, strict=True) for name in own]
        asking = [pool.submit(keep_asking, host, name) for host, name in both]
        for asked in asking:
            asked.result(LIMIT_S)
    hosts[0].shutdown()
    assert ask(hosts[1], "qwen3", PROMPTS[0]) == solo["qwen3", PROMPTS[0]]
    assert ask(hosts[1], "llama", PROMPTS[1]) == solo["llama", PROMPTS[1]]
    long = hosts[1].generate("qwen3", tokens=PROMPTS[2] * 20, max_tokens=3, ignore_eos=True)
    long.wait()
    assert hosts[1].cache("qwen3").disk == "on"
    hosts[1].shutdown()
    assert not GUARD.owners()


def test_a_stream_goes_on_while_a_neighbour_comes_and_goes(
    pairs: dict[str, Pair], solo: dict[tuple[str, tuple[int, ...]], tuple[int, ...]]
) -> None:
    """Between any two words of a neighbour's load the stream gets its turn, the neighbour's leave
    takes no more than a few of the engine's steps, and the text is the solo run's.
    """
    with Host() as host:
        host.load("qwen3", pairs["qwen3"].target, pairs["qwen3"].draft)
        host.load("hybrid", pairs["hybrid"].target, pairs["hybrid"].draft)
        host.unload("hybrid")  # what is compiled once is compiled
        alone = host.generate("qwen3", tokens=PROMPTS[0], max_tokens=240, ignore_eos=True)
        expected = alone.wait().tokens
        came, enough = [0], threading.Event()

        def read() -> int:
            rounds = 0
            while not enough.is_set():
                tokens: list[int] = []
                options: Any = {"tokens": PROMPTS[0], "max_tokens": 240, "ignore_eos": True}
                for chunk in host.generate("qwen3", **options):
                    tokens += chunk.tokens
                    came[0] += 1
                assert tuple(tokens) == expected
                rounds += 1
            return rounds

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            try:
                for _ in range(3):
                    told: list[LoadProgress] = []
                    steps = host.steps()
                    pair = pairs["hybrid"]
                    host.load("hybrid", pair.target, pair.draft, on_progress=told.append)
                    # Each word of the load counts as a step; the others are the stream's.
                    assert host.steps() - steps >= 1.5 * len(told)
                    assert len(told) > 5
                    assert ask(host, "hybrid", PROMPTS[1]) == solo["hybrid", PROMPTS[1]]
                    before, steps = came[0], host.steps()
                    host.unload("hybrid")
                    assert host.steps() - steps <= 5
                    until_s = time.monotonic() + LIMIT_S
                    while came[0] == before:
                        assert time.monotonic() < until_s, "the stream stopped with its neighbour"
                        time.sleep(0.001)
            finally:
                enough.set()
            assert reading.result(LIMIT_S) > 0


def test_other_settings_share_the_weights(pairs: dict[str, Pair]) -> None:
    """A model that is loaded anew with another block length reads no weights again."""
    pair = pairs["llama"]
    with Host() as host:
        first = host.load("m", pair.target, pair.draft)
        again = host.load("m", pair.target, pair.draft, block_tokens=2)
        assert first.shared_bytes == 0
        assert again.shared_bytes == again.memory_bytes == first.memory_bytes
        prompt = PROMPTS[0] * 8
        told = [host.generate("m", tokens=prompt, max_tokens=9).wait().stats for _ in range(2)]
        assert [stats.block_tokens for stats in told] == [2, 2]
        assert told[1].cached_tokens > 0
        host.load("m", pair.target, pair.draft, block_tokens=4)
        kept = host.generate("m", tokens=prompt, max_tokens=9).wait().stats
        assert kept.cached_tokens > 0, "the cache outlived a change that it does not depend on"


def test_a_failed_reconfiguration_leaves_the_model(pairs: dict[str, Pair]) -> None:
    """A draft that does not fit is refused in the caller; the old pair answers as before."""
    pair = pairs["qwen3"]
    with Host() as host:
        host.load("m", pair.target, pair.draft)
        before = ask(host, "m", PROMPTS[0])
        with pytest.raises(DflashError) as caught:
            host.load("m", pair.target, pairs["llama"].draft)
        assert caught.value.code is ErrorCode.load_failed
        assert ask(host, "m", PROMPTS[0]) == before


def test_the_applications_own_model_is_not_touched(pairs: dict[str, Pair]) -> None:
    """A stock mlx-lm model of the very classes we hook, run on the application's own thread
    meanwhile, gives what it gave before and keeps its class.
    """
    with mx.stream(mx.default_stream(mx.default_device())):
        stock: Any = load_model(pairs["qwen3"].target)[0]
        classes = [type(module) for module in stock.modules()]
        alone = stock_tokens(stock)
        with Host() as host, ThreadPoolExecutor(1) as pool:
            host.load("m", pairs["qwen3"].target, pairs["qwen3"].draft)
            enough = threading.Event()

            def keep_asking() -> int:
                count = 0
                while not enough.is_set():
                    ask(host, "m", PROMPTS[count % len(PROMPTS)])
                    count += 1
                return count

            asking = pool.submit(keep_asking)
            try:
                for _ in range(5):
                    assert stock_tokens(stock) == alone
                    assert [type(module) for module in stock.modules()] == classes
            finally:
                enough.set()
            assert asking.result(LIMIT_S) > 0


def stock_tokens(stock: Any) -> list[int]:
    """What mlx-lm itself generates."""
    prompt = mx.array(PROMPTS[0])
    return [int(token) for token, _ in generate_step(prompt, stock, max_tokens=TOKENS)]


COMES_AND_GOES = """
from pathlib import Path
import sys
import psutil
from dflashd.worker import Host

process = psutil.Process()
with Host() as host:

    def come_and_go(times):
        for _ in range(times):
            host.load("m", Path(sys.argv[1]))
            host.unload("m")
        return process.memory_info().rss

    before_bytes = come_and_go(8)
    print(come_and_go(25) - before_bytes)
"""


def test_loads_and_unloads_do_not_add_up(pairs: dict[str, Pair]) -> None:
    """A model that comes and goes many times leaves less than a tenth of what one graph of unused
    random weights takes each time. In a process of its own: what other tests left counts too.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMES_AND_GOES, str(pairs["llama"].target)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) < 25 * 20_000


PROGRAM = """
from pathlib import Path
import sys
from dflashd.worker import Host, LoadProgress

host = Host()
host.load("m", Path(sys.argv[1]))
answer = iter(host.generate("m", "x", max_tokens=3000, ignore_eos=True))
next(answer)
"""


@pytest.mark.parametrize("ending", ["", "host.shutdown()", "del answer, host"])
def test_a_program_ends_cleanly(pairs: dict[str, Pair], ending: str) -> None:
    """A program that shuts its host down, drops it, or just ends in the middle of an answer ends
    at once, quietly, and without a crash of mlx's threads.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ending, str(pairs["llama"].target)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
