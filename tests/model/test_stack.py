"""The whole stack on the real embedded pair: daemon, sockets, worker process, engine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import dequantize_model, load_model as load_mlx_model

from dflashd.protocol import Client, Daemon, DflashError, ErrorCode, SnapshotBody
from dflashd.protocol.messages import ChatMessage, GenerateBody
from dflashd.protocol.sync import Generation
from dflashd.worker.text.chat import encode

from ..process.daemon_process import is_alive, wait_for

pytestmark = pytest.mark.slow

TOKENS = 6
MODELS = {"three": "smollm2-135m-dflash", "one": "smollm2-135m-dflash-1l"}
CHAT_EACH = 5
"""Of so many prompts one is a chat, whose template alone is thirty tokens."""
ROUNDING = 2e-3
"""Largest difference of two float32 logits that batching rows differently explains."""

PROMPTS = (
    "Write a Python function that reverses a string.",
    "def quicksort(items):",
    "Explain how a bicycle stays upright.",
    "List the planets of the solar system.",
    "What is the capital of Portugal?",
    "Schreibe einen Satz über den Regen.",
    "Écris une phrase sur la mer.",
    "¿Cuál es la capital de México?",
    "日本の首都はどこですか。",
    "Напиши одно предложение о зиме.",
    "Write a haiku about autumn.",
    "SELECT name FROM users WHERE",
    "Give three reasons to learn to cook.",
    "Translate to French: good morning.",
    "What is 17 times 23?",
    "Once upon a time, in a small village by the sea,",
    "Write an e-mail that declines an invitation politely.",
    "Summarise: The cat sat on the mat. It was warm. It fell asleep.",
    '{"name": "Ada", "born": 1815, "fields": [',
    "Who wrote 'Pride and Prejudice', and when?",
)


@contextlib.contextmanager
def serving(home: Path) -> Generator[Daemon]:
    """A daemon that serves the embedded target with both drafts."""
    run = home / "run"
    lines = ["[daemon]", f'runtime_dir = "{run}"', f'state_dir = "{home / "state"}"']
    for name, draft in MODELS.items():
        lines += [f"[models.{name}]", 'target = "smollm2-135m"', f'draft = "{draft}"']
    config = home / "config.toml"
    config.write_text("\n".join(lines) + "\n")
    with Daemon(config, runtime_dir=run, log=home / "daemon.log") as running:
        yield running


@pytest.fixture
def daemon(short_dir: Path) -> Generator[Daemon]:
    """A daemon of one test, which may kill it."""
    with serving(short_dir) as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    """A client of a daemon that stays, with both models loaded."""
    with (
        tempfile.TemporaryDirectory(prefix="dfd", dir="/tmp") as home,
        serving(Path(home)) as running,
        running.client() as connected,
    ):
        for name in MODELS:
            connected.spawn(name)
        yield connected


@pytest.fixture(scope="module")
def stock(smollm2_folder: Path) -> Any:
    """mlx-lm's own model of the same weights, in the dtype that the worker computes in."""
    model, _ = load_mlx_model(smollm2_folder, lazy=True)
    model.set_dtype(mx.float32)
    dequantize_model(model)
    mx.eval(model.parameters())
    return model


def test_greedy_text_is_mlx_lms(client: Client, stock: Any, smollm2_tokenizer: Any):
    """Both DFlash models give plain mlx-lm's greedy tokens on twenty prompts, but for near ties."""
    for number, prompt in enumerate(PROMPTS):
        asked = GenerateBody(prompt=prompt)
        if number % CHAT_EACH == 0:
            asked = GenerateBody(messages=(ChatMessage(role="user", content=prompt),))
        name = list(MODELS)[number % len(MODELS)]
        answer = client.generate(
            name, asked.prompt, messages=asked.messages, max_tokens=TOKENS
        ).wait()
        assert answer.stats.engine == "dflash"
        context = encode(smollm2_tokenizer, asked)
        tokens = list(answer.tokens)
        if len(tokens) < TOKENS:
            assert answer.stats.finish_reason == "stop"
        assert greedy(stock, smollm2_tokenizer, context, tokens), prompt


def greedy(stock: Any, tokenizer: Any, context: list[int], tokens: list[int]) -> bool:
    """Whether mlx-lm, choosing the likeliest token each time, says ``tokens`` behind ``context``.

    One pass over both shows what each choice was made from. Behind the first near tie, two tokens
    with the same logit but for rounding, either text is as good.
    """
    logits: Any = stock(mx.array([context + tokens]))[0, len(context) - 1 :]
    choices: Any = mx.argmax(logits, axis=-1).tolist()
    for row, (ours, theirs) in enumerate(zip(tokens, choices, strict=False)):
        if ours != theirs:
            return theirs not in tokenizer.eos_token_ids and near_tie(logits[row], ours, theirs)
    return len(tokens) == TOKENS or choices[-1] in tokenizer.eos_token_ids


def near_tie(logits: Any, ours: int, theirs: int) -> bool:
    a, b = float(logits[ours].item()), float(logits[theirs].item())
    sys.stderr.write(f"near tie: logits {a} and {b}\n")
    return abs(a - b) < ROUNDING


def test_two_models_answer_at_the_same_time(client: Client):
    """Two requests to two models stream interleaved, from two processes that both stay."""
    for name in MODELS:
        client.spawn(name)  # another test may have killed it
    before = client.status()
    running = {name: ask(client, name, "Count to twenty.", 30) for name in MODELS}
    assert {model.active for model in client.status().models} == {1}
    answers = {name: generation.wait() for name, generation in running.items()}
    after = client.status()
    assert len({answer.stats.worker_pid for answer in answers.values()}) == len(MODELS)
    assert pids(before) == pids(after)
    assert loads(before) == loads(after)


def test_cancel_reaches_the_worker_within_the_prompt(client: Client):
    """A request cancelled in its prompt phase stops computing, and the model serves the next."""
    client.spawn("one")
    generation = ask(client, "one", long_prompt(), 8)
    wait_for("the worker computes it", lambda: active(client, "one") == 1, limit_s=10)
    generation.cancel()
    with pytest.raises(DflashError) as failed:
        generation.wait()
    assert failed.value.code is ErrorCode.cancelled
    wait_for("the worker is idle", lambda: active(client, "one") == 0, limit_s=20)
    assert client.generate("one", "Hi", max_tokens=2).wait().stats.generated_tokens >= 1


def test_a_lost_worker_fails_its_request_and_comes_back(client: Client):
    """SIGKILL in the middle of an answer is `worker_lost` at once; the next request is served."""
    generation = ask(client, "one", "Write a long story.", 200)
    chunks = iter(generation)
    next(chunks)
    os.kill(pids(client.status())["one"], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(DflashError) as failed:
        generation.wait()
    assert failed.value.code is ErrorCode.worker_lost
    assert failed.value.retryable
    assert time.monotonic() - began < 2
    assert client.generate("one", "Hi", max_tokens=2).wait().stats.generated_tokens >= 1


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a long prefill"])
def test_no_worker_outlives_the_daemon(daemon: Daemon, busy: bool):
    """SIGKILL of the daemon takes its workers along within a second, whatever they do."""
    with daemon.client() as client:
        client.spawn("one")
        worker = pids(client.status())["one"]
        if busy:
            _ = ask(client, "one", long_prompt(), 8)
            wait_for("the worker computes it", lambda: active(client, "one") == 1, limit_s=10)
        os.kill(daemon.pid, signal.SIGKILL)
    wait_for("the worker is gone", lambda: not is_alive(worker), limit_s=1)


def test_a_stop_string_ends_the_work(client: Client):
    """The engine stops where the stop string was met, and says so."""
    answer = client.generate(
        "three",
        messages=[ChatMessage(role="user", content="Count: 1, 2, 3,")],
        max_tokens=200,
        stop=[","],
    ).wait()
    assert answer.stats.finish_reason == "stop"
    assert answer.stats.stop_string == ","
    assert "," not in answer.text
    assert answer.stats.generated_tokens < 200


def test_sampled_text_depends_on_its_seed_only(client: Client):
    """The same seed gives the same text alone and beside another request; another seed differs."""

    def sampled(seed: int) -> Generation:
        return client.generate(
            "one", "The sea was", max_tokens=16, temperature=1.0, top_p=0.95, seed=seed
        )

    alone = sampled(7).wait().text
    beside, other = sampled(7), sampled(8)
    assert beside.wait().text == alone
    assert other.wait().text != alone


def ask(client: Client, model: str, text: str, max_tokens: int) -> Generation:
    return client.generate(
        model, messages=[ChatMessage(role="user", content=text)], max_tokens=max_tokens
    )


def long_prompt() -> str:
    return "All work and no play makes Jack a dull boy. " * 400


def pids(snapshot: SnapshotBody) -> dict[str, int]:
    return {worker.name: worker.pid or 0 for worker in snapshot.workers}


def loads(snapshot: SnapshotBody) -> dict[str, tuple[int, int]]:
    return {model.name: (model.loads, model.unloads) for model in snapshot.models}


def active(client: Client, model: str) -> int:
    return next(m.active for m in client.status().models if m.name == model)
