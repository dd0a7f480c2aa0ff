"""Hostile HTTP beyond the single limits: names, texts, floods, and what is left of them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from .daemon_process import wait_for
from .gateway_process import Gateway

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}

PATHS = [
    "../../etc/passwd",
    "/etc/passwd",
    "./a",
    "~/a",
    "file:///etc/passwd",
    "a\x00",
    "a/../../../etc",
    "..",
    "\u202ea",
    "a" * 100_000,
    "",
    "${HOME}",
    "_http",
]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_no_model(shared_gateway: Gateway, name: str) -> None:
    """Only configured names are models; what looks like a path opens nothing and loads nothing."""
    for path, body in (
        (CHAT, {**ASK, "model": name}),
        ("/v1/completions", {"model": name, "prompt": "x"}),
        ("/v1/messages", {**ASK, "model": name, "max_tokens": 5}),
    ):
        status, _, answer = shared_gateway.post(path, body)
        assert status == 404, answer
        assert len(json.dumps(answer)) < 2000
        assert "root:" not in json.dumps(answer)


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"])
def test_a_path_in_the_address_opens_no_file(shared_gateway: Gateway, path: str) -> None:
    """The gateway serves no files: there is no way out of a folder that does not exist."""
    for prefix in ("", "/v1/models", "/page.js"):
        status, _, answer = shared_gateway.get(prefix + path)
        assert (status, b"root:" in answer) == (404, False)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"model": "a", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b"\xef\xbb\xbf{",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"model": "a", "model": "b"',
        b'{"model": 1e999999}',
        b"\x00" * 1000,
        b"",
    ],
)
def test_a_body_that_is_no_text_is_refused(shared_gateway: Gateway, body: bytes) -> None:
    """Invalid UTF-8, half surrogates, abysses of brackets: 400 in the dialect's shape, no crash."""
    before = shared_gateway.service()
    for path in (CHAT, "/v1/completions", "/v1/messages"):
        status, _, answer = shared_gateway.post(path, body)
        assert status == 400
        assert "Traceback" not in json.dumps(answer)
    assert shared_gateway.service().pid == before.pid


def test_a_flood_leaves_nothing_behind(make_gateway: Callable[..., Gateway]) -> None:
    """Thousands of bad requests and broken connections: the same process, hardly more memory."""
    gateway = make_gateway({"a": {}}, connections=64)
    service = gateway.service()
    assert service.pid is not None
    process = psutil.Process(service.pid)

    def flood() -> None:
        for number in range(150):
            with contextlib.suppress(OSError), gateway.raw() as connection:
                if number % 3 == 0:
                    connection.sendall(b"\x16\x03\x01" + b"\xff" * 500)  # TLS to a plain port
                elif number % 3 == 1:
                    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n"
                    connection.sendall(head.encode() + b"x" * 5000)
                else:
                    connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                    connection.shutdown(socket.SHUT_WR)

    def flooded() -> int:
        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return process.memory_info().rss

    first = flooded()
    last = max(flooded() for _ in range(2))
    assert last - first < 16 * 2**20
    wait_for("it answers", gateway.listens)
    assert gateway.post(CHAT, ASK)[0] == 200
    assert gateway.service().pid == service.pid
    wait_for("no descriptor is left", lambda: process.num_fds() < 40)


def test_an_answer_is_only_its_askers(make_gateway: Callable[..., Gateway]) -> None:
    """Many clients at once over the gateway's one connection: each gets its own prompt's answer."""
    gateway = make_gateway({"a": {"echo": True, "chunks": 5}})
    wrong: list[str] = []

    def ask(number: int) -> None:
        for turn in range(5):
            secret = f"secret-{number}-{turn}"
            body = {**ASK, "messages": [{"role": "user", "content": secret}]}
            status, _, answer = gateway.post(CHAT, body)
            text = answer["choices"][0]["message"]["content"] if status == 200 else answer
            if text != f"user={secret}" * 5:
                wrong.append(str(text))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_prompts_and_answers_are_in_no_log(make_gateway: Callable[..., Gateway]) -> None:
    """What is asked, well or badly, reaches no log of daemon, gateway or worker."""
    gateway = make_gateway({"a": {}})
    secret = "open-sesame-4711"
    body = {**ASK, "messages": [{"role": "user", "content": secret}]}
    assert gateway.post(CHAT, body)[0] == 200
    assert gateway.post(CHAT, {**body, "temperature": secret})[0] == 400
    assert gateway.post(CHAT, {**body, "model": "missing"})[0] == 404
    gateway.post("/v1/messages", b'{"messages": "' + secret.encode())
    with gateway.daemon.client() as client:
        assert client.generate("a", secret).wait().tokens
    logs = [gateway.daemon.log, *(gateway.daemon.state_dir / "logs").glob("*.log*")]
    assert len(logs) >= 3
    assert not [log for log in logs if secret in log.read_text(errors="replace")]
