"""What clients do wrong, and what happens to the gateway, stays where it belongs."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflashd.protocol import Client

from .daemon_process import is_alive, wait_for
from .gateway_process import Gateway, GatewayDaemon

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}
ENDLESS = {"chunks": 100_000, "chunk_s": 0.02}


def begun(gateway: Gateway, *, stream: bool, size: int | None = None) -> socket.socket:
    """A request on a bare connection."""
    connection = gateway.raw()
    if size is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    body = json.dumps({**ASK, "stream": stream}).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes instead of saying anything, in bounded time."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_cancels_its_request(
    make_gateway: Callable[..., Gateway], tmp_path: Path, stream: bool
) -> None:
    """The worker hears of it within a cycle, streaming or not, and its place is free."""
    cancels = tmp_path / "cancels"
    gateway = make_gateway({"a": {**ENDLESS, "count_cancels": str(cancels)}})
    with begun(gateway, stream=stream):
        wait_for("it runs", lambda: gateway.daemon.status().models[0].active == 1)
    wait_for("it is cancelled", cancels.exists, limit_s=2)
    wait_for("its place is free", lambda: gateway.daemon.status().models[0].active == 0)


def test_a_client_that_reads_nothing_is_cut_off(
    make_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """It loses its own request after the write timeout, and nobody else minds."""
    cancels = tmp_path / "cancels"
    flood = {"chunks": 1_000_000, "chunk_s": 0.0, "text": "x" * 4000}
    gateway = make_gateway(
        {"a": {**flood, "count_cancels": str(cancels)}, "b": {}}, write_timeout_s=0.5
    )
    with begun(gateway, stream=True, size=4096):
        status, _, answer = gateway.post(CHAT, {**ASK, "model": "b"})
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
        wait_for("it is cut off", cancels.exists)
    assert "takes nothing" in gateway.log


def test_headers_that_never_end_are_cut_off(make_gateway: Callable[..., Gateway]) -> None:
    """A half-open connection, and one that drips, end after the header timeout."""
    gateway = make_gateway({"a": {}}, header_timeout_s=0.3)
    for beginning in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Drip: "):
        with gateway.raw() as connection:
            connection.sendall(beginning)
            assert is_closed(connection)


def test_a_second_request_may_take_no_longer(make_gateway: Callable[..., Gateway]) -> None:
    """The header timeout holds for every request of a connection, and not between them."""
    gateway = make_gateway({"a": {}}, header_timeout_s=0.4)
    with gateway.raw() as connection:
        for _ in range(2):
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while b'"live"}' not in answer:
                answer += connection.recv(4096)
            connection.settimeout(0.8)  # silence between requests is no fault
            with pytest.raises(TimeoutError):
                assert connection.recv(1)
            connection.settimeout(20)
        connection.sendall(b"GET /health")
        assert is_closed(connection)


def test_a_body_is_bounded_in_size_and_time(make_gateway: Callable[..., Gateway]) -> None:
    """413 for what is too large, declared or chunked; 408 for what does not arrive."""
    gateway = make_gateway({"a": {}}, body_bytes=2000, body_timeout_s=0.3)
    status, _, answer = gateway.post(CHAT, b"x" * 3000)
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    with gateway.raw() as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        connection.sendall(b"bb8\r\n" + b"x" * 3000 + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"
    with gateway.raw() as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 408"


def test_headers_are_bounded_in_size(make_gateway: Callable[..., Gateway]) -> None:
    """Headers beyond the limit are refused, not stored."""
    gateway = make_gateway({"a": {}}, header_bytes=4096)
    with gateway.raw() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000)
        assert connection.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Content-Length: 4\r\nContent-Length: 5",
        "Transfer-Encoding: chunked, identity",
        "Content-Length: +4",
        "Content-Length : 4",
        "X: a\nContent-Length: 4",
    ],
)
def test_what_could_be_read_in_two_ways_ends_the_connection(
    shared_gateway: Gateway, head: str
) -> None:
    """Smuggling tries: no second request is ever read from a connection with doubtful framing."""
    hidden = "GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with shared_gateway.raw() as connection:
        request = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n\r\n0\r\n\r\n{hidden}"
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        answers = b""
        while part := connection.recv(65536):
            answers += part
    assert b"HTTP/1.1 2" not in answers
    assert b"live" not in answers


def test_too_many_requests_are_told_to_come_back(make_gateway: Callable[..., Gateway]) -> None:
    """429 with Retry-After beyond the limit of one client, and again room afterwards."""
    gateway = make_gateway({"a": ENDLESS}, active_requests_per_client=1)
    with begun(gateway, stream=True):
        wait_for("it runs", lambda: gateway.daemon.status().models[0].active == 1)
        status, headers, answer = gateway.post(CHAT, ASK)
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) >= 1
        assert gateway.get("/health/ready")[0] == 200
    wait_for("there is room", lambda: gateway.post(CHAT, {**ASK, "model": "b"})[0] == 404)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"model": "a", "messages": []}', 400),
        (b'{"model": "a", "messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"a":' * 100_000, 400),
        (b'{"model": "a", "messages": [{"role": "user", "content": 5}]}', 400),
    ],
)
def test_bodies_that_cannot_be_read(shared_gateway: Gateway, body: bytes, status: int) -> None:
    """Status 400 in OpenAI's shape, whatever was sent."""
    got, _, answer = shared_gateway.post(CHAT, body)
    assert (got, answer["error"]["type"]) == (status, "invalid_request_error")


def test_pages_of_other_sites_get_nothing(shared_gateway: Gateway) -> None:
    """A form's content type, a foreign Host and a preflight are refused; CORS is never granted."""
    status, _, _ = shared_gateway.post(CHAT, ASK, **{"content-type": "text/plain"})
    assert status == 415
    status, _, _ = shared_gateway.get("/v1/models", host="evil.example")
    assert status == 421
    status, _, _ = shared_gateway.get("/v1/models", host="LocalHost:80")
    assert status == 200, "names of hosts are the same in any case"
    status, headers, _ = shared_gateway.send(
        "OPTIONS", CHAT, None, origin="http://evil.example", host="127.0.0.1"
    )
    assert (status, headers["allow"]) == (405, "POST")
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_deadline_is_a_408(make_gateway: Callable[..., Gateway]) -> None:
    """A request that takes longer than allowed is ended, and says so."""
    gateway = make_gateway({"a": ENDLESS}, request_timeout_s=1)
    status, _, answer = gateway.post(CHAT, ASK)
    assert (status, answer["error"]["code"]) == (408, "deadline")


def test_a_crash_of_the_gateway_touches_no_request(make_gateway: Callable[..., Gateway]) -> None:
    """Killed in the middle, it is back by itself; a stream over ZeroMQ goes on meanwhile."""
    gateway = make_gateway({"a": {"chunks": 100, "chunk_s": 0.02}})
    with gateway.daemon.client() as client:
        stream = client.generate("a", prompt="Hi")
        first = gateway.service()
        assert first.pid is not None
        psutil.Process(first.pid).kill()
        assert len(stream.wait().tokens) == 100
    wait_for("it is back", lambda: gateway.service().pid not in (None, first.pid) and True)
    wait_for("it serves", gateway.listens)
    assert gateway.service().restarts == 1
    assert "since it was killed by SIGKILL" in gateway.service().reason
    assert gateway.post(CHAT, ASK)[0] == 200


def test_the_gateway_gives_up_on_a_port_that_is_taken() -> None:
    """It backs off, says why, gives up at last; the models do not mind."""
    limits = {"failures_before_fatal": 2, "backoff_first_s": 0.01}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        daemon = GatewayDaemon({"a": {}}, taken.getsockname()[1], {}, **limits)
        with contextlib.closing(daemon):

            def given_up() -> bool:
                (service,) = daemon.status().services
                return service.state == "fatal" and "choose another" in service.reason

            wait_for("it gives up", given_up)
            with daemon.client() as client:
                assert client.generate("a", prompt="Hi").wait().text


def test_the_gateway_dies_with_the_daemon(make_gateway: Callable[..., Gateway]) -> None:
    """A killed daemon leaves no gateway behind."""
    gateway = make_gateway({"a": {}})
    pid = gateway.service().pid
    assert pid is not None
    gateway.daemon.signal(signal.SIGKILL)
    wait_for("it is gone", lambda: not is_alive(pid), limit_s=3)


def test_a_stopping_daemon_ends_its_gateway_in_order(make_gateway: Callable[..., Gateway]) -> None:
    """Requests under way are finished first; then both leave, in bounded time."""
    gateway = make_gateway({"a": {"chunks": 20, "chunk_s": 0.05}})
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(gateway.post(CHAT, ASK)[0]))
    asking.start()
    wait_for("it runs", lambda: gateway.daemon.status().models[0].active == 1)
    gateway.daemon.signal(signal.SIGTERM)
    assert gateway.daemon.wait() == 0
    asking.join(10)
    assert answers == [200]


def test_looking_changes_nothing(make_gateway: Callable[..., Gateway]) -> None:
    """Page, health, metrics and model list load no model, however often they are asked."""
    gateway = make_gateway({"a": {}})
    for _ in range(3):
        for path in ("/", "/page.js", "/page.css", "/status.json", "/metrics", "/v1/models"):
            assert gateway.get(path)[0] == 200
        assert gateway.get("/health/ready")[0] == 200
    status = gateway.daemon.status()
    assert status.workers[0].epoch == 0
    assert status.models[0].loads == 0


def test_a_stopping_daemon_is_not_ready(make_gateway: Callable[..., Gateway]) -> None:
    """It finishes what runs, and tells whoever balances load to send no more."""
    gateway = make_gateway({"a": {"chunks": 1000, "chunk_s": 0.05}})
    with begun(gateway, stream=True), Client(gateway.daemon.runtime_dir) as client:
        wait_for("it runs", lambda: client.status().models[0].active == 1)
        gateway.daemon.signal(signal.SIGTERM)

        def unready() -> bool:
            status, _, body = gateway.get("/health/ready")
            return status == 503 and "stopping" in body.decode()

        wait_for("it says so", unready, limit_s=5)
        assert gateway.get("/health/live")[0] == 200


def test_metrics_are_prometheus_text(shared_gateway: Gateway) -> None:
    """States, queues and counters, as the supervisor has them, and the gateway's own requests."""
    shared_gateway.post(CHAT, ASK)
    text = shared_gateway.get("/metrics")[2].decode()
    assert 'dflashd_model_state{model="org/b",state="stopped"} 1.0' in text
    assert 'dflashd_tokens_total{model="a"} 5.0' in text
    assert 'dflashd_time_to_first_token_seconds_bucket{le="+Inf",model="a"} 1.0' in text
    assert "dflashd_uptime_seconds " in text
    assert f'dflashd_http_requests_total{{path="{CHAT}",status="200"}}' in text
