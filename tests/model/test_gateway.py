"""The official clients on the real embedded model."""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dflashd.protocol import Client, Daemon

from ..process.daemon_process import wait_for
from ..process.gateway_process import free_port, section

pytestmark = pytest.mark.slow

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Client]]:
    """Where the gateway of a daemon with the embedded pair is, and a client of that daemon."""
    folder: Path = tmp_path_factory.mktemp("g")
    run, port = Path("/tmp") / f"dfd{free_port()}", free_port()
    config = folder / "config.toml"
    lines = ["[daemon]", f'runtime_dir = "{run}"', f'state_dir = "{folder / "state"}"']
    lines += ["[models.small]", 'target = "smollm2-135m"', 'draft = "smollm2-135m-dflash"']
    config.write_text("\n".join(lines) + "\n" + section(port))
    with Daemon(config, runtime_dir=run, log=folder / "log") as daemon, daemon.client() as client:
        wait_for("it listens", lambda: listens(port))
        yield f"http://127.0.0.1:{port}", client
    run.rmdir()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_openai_says_what_the_daemon_says(served: tuple[str, Client]) -> None:
    """Greedy text, tokens and acceptance are the same over HTTP; a repeated prompt is cached."""
    url, client = served
    direct = client.generate("small", messages=QUESTION, max_tokens=24, temperature=0).wait()
    official = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60)
    answer = official.chat.completions.create(
        model="small", messages=QUESTION, max_tokens=24, temperature=0, logprobs=True
    )
    (choice,) = answer.choices
    assert choice.message.content == direct.text
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    written = b"".join(bytes(entry.bytes or ()) for entry in entries)
    assert written.decode() == direct.text
    assert all(entry.logprob <= 0 for entry in entries)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens
    assert choice.model_extra is not None
    assert choice.model_extra["dflashd"]["engine"] == "dflash"
    streamed = official.chat.completions.create(
        model="small", messages=QUESTION, max_tokens=24, temperature=0, stream=True
    )
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == direct.text


def test_a_stop_string_and_a_seed_hold_over_http(served: tuple[str, Client]) -> None:
    """A stop string is not part of the text; a seed repeats the text."""
    official = openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", timeout=60)

    def text(**fields: Any) -> str:
        body: dict[str, Any] = {"model": "small", "prompt": "1 2 3 4 5", "max_tokens": 16}
        return official.completions.create(**body | fields).choices[0].text

    assert "7" not in text(temperature=0, stop=["7"])
    assert text(temperature=1, seed=4) == text(temperature=1, seed=4)


def test_anthropic_streams_the_same_text(served: tuple[str, Client]) -> None:
    """The other official client gets the same greedy text, and why it ended."""
    url, client = served
    direct = client.generate("small", messages=QUESTION, max_tokens=24, temperature=0).wait()
    official = anthropic.Anthropic(base_url=url, api_key="none", timeout=60)
    with official.messages.stream(
        model="small", messages=QUESTION, max_tokens=24, extra_body={"temperature": 0}
    ) as stream:
        assert stream.get_final_text() == direct.text
        message = stream.get_final_message()
    expected = "max_tokens" if direct.stats.finish_reason == "length" else "end_turn"
    assert message.stop_reason == expected


def test_a_count_is_what_a_message_then_costs(served: tuple[str, Client]) -> None:
    """count_tokens says how many input tokens the same message has, whatever its length."""
    url, _ = served
    client = anthropic.Anthropic(base_url=url, api_key="none", timeout=60)
    asked: Any = {"model": "small", "messages": QUESTION}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    longer: Any = [{"role": "user", "content": "word " * 20_000}]
    assert client.messages.count_tokens(model="small", messages=longer).input_tokens > 20_000


def test_tools_of_a_model_without_them_are_refused(served: tuple[str, Client]) -> None:
    """The embedded model's template knows no tools: an error that says so, not silence."""
    official = openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", timeout=60)
    tool: Any = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(openai.BadRequestError, match="tools") as caught:
        official.chat.completions.create(model="small", messages=QUESTION, tools=[tool])
    assert caught.value.code == "unsupported"
