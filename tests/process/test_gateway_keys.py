"""HTTP API keys and TLS: asked for wherever others can come from, stored as nothing but digests."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from dflashd.supervisor.keys.http_keys import http_keys, new_http_key, revoke_http_key

from .daemon_process import wait_for
from .gateway_process import Gateway, GatewayDaemon, free_port
from .test_cli_commands import ctl

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}
ANTHROPIC = {**ASK, "max_tokens": 5}


class KeyedDaemon(GatewayDaemon):
    """With one API key before the start."""

    def write_config(self, models: list[str]) -> None:
        """Write the file, and the key."""
        super().write_config(models)
        self.state_dir.mkdir(mode=0o700)
        self.key = new_http_key(self.folder, "app")

    @property
    def folder(self) -> Path:
        """Where the keys are."""
        return self.state_dir / "keys"


@pytest.fixture
def keyed() -> Any:
    """A maker of gateways that ask for keys; the key is ``gateway.daemon.key``."""
    made: list[KeyedDaemon] = []

    def make(models: dict[str, dict[str, Any]], **http: Any) -> Gateway:
        made.append(KeyedDaemon(models, free_port(), {"require_keys": True, **http}))
        return Gateway(made[-1])

    yield make
    logs = [daemon.close() for daemon in made]
    assert not any("internal_error" in log for log in logs), logs


def test_a_key_opens_every_dialect_and_its_absence_none(keyed: Callable[..., Gateway]) -> None:
    """Bearer, x-api-key and basic all do; without a key it is 401 in the dialect's own shape."""
    gateway = keyed({"a": {}})
    daemon: Any = gateway.daemon
    basic = base64.b64encode(f"me:{daemon.key}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {daemon.key}"},
        {"x-api-key": daemon.key},
        {"authorization": f"Basic {basic}"},
    ):
        assert gateway.post(CHAT, ASK, **headers)[0] == 200
        assert gateway.get("/status.json", **headers)[0] == 200
        assert gateway.post("/v1/messages", ANTHROPIC, **headers)[0] == 200
    status, headers, answer = gateway.post(CHAT, ASK)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert "Basic" in headers["www-authenticate"]
    status, _, answer = gateway.post("/v1/messages", ANTHROPIC)
    assert (status, answer["error"]["type"]) == (401, "authentication_error")
    for path in ("/v1/models", "/v1/models/a", "/metrics", "/status.json", "/", "/health/ready"):
        assert gateway.get(path)[0] == 401, path
    assert gateway.get("/health/live")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer " + "x" * 5000},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic " + base64.b64encode(b"\xff:\xfe").decode()},
        {"authorization": "Digest x"},
        {"x-api-key": "\xe9\xff"},
        {"x-api-key": ""},
    ],
)
def test_what_is_no_key_opens_nothing(shared_keyed: Gateway, headers: dict[str, str]) -> None:
    """Wrong, empty, oversized, undecodable: refused alike, and nobody learns why."""
    status, _, answer = shared_keyed.post(CHAT, ASK, **headers)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")


@pytest.fixture(scope="module")
def shared_keyed() -> Any:
    """One gateway for tests that leave nothing behind."""
    daemon = KeyedDaemon({"a": {}}, free_port(), {"require_keys": True})
    try:
        yield Gateway(daemon)
    finally:
        daemon.close()


def test_two_keys_in_one_request_are_none(shared_keyed: Gateway) -> None:
    """A request is one client's: with a good key and another one, it is nobody's."""
    key = shared_keyed.daemon.key  # pyright: ignore[reportAttributeAccessIssue]
    headers = {"authorization": f"Bearer {key}", "x-api-key": "another"}
    assert shared_keyed.post(CHAT, ASK, **headers)[0] == 401
    headers["x-api-key"] = key
    assert shared_keyed.post(CHAT, ASK, **headers)[0] == 200


def test_a_revoked_key_ends_what_it_began(keyed: Callable[..., Gateway]) -> None:
    """Without any restart: the stream under way ends with an error, the next request is refused."""
    gateway = keyed({"a": {"chunks": 1_000_000, "chunk_s": 0.01}})
    daemon: Any = gateway.daemon
    headers = {"authorization": f"Bearer {daemon.key}"}
    ended: list[bytes] = []

    def stream() -> None:
        body = json.dumps({**ASK, "stream": True}).encode()
        sent = {"content-type": "application/json", **headers}
        ended.append(gateway.send("POST", CHAT, body, **sent)[2])

    streaming = threading.Thread(target=stream)
    streaming.start()
    wait_for("it runs", lambda: daemon.status().models[0].active == 1)
    revoke_http_key(daemon.folder, "app")
    streaming.join(20)
    assert b"was revoked" in ended[0][-1000:]
    wait_for("its place is free", lambda: daemon.status().models[0].active == 0)
    assert gateway.post(CHAT, ASK, **headers)[0] == 401
    fresh = new_http_key(daemon.folder, "new")
    assert gateway.get("/v1/models", **{"x-api-key": fresh})[0] == 200


def test_the_stored_file_does_not_tell_the_key(shared_keyed: Gateway) -> None:
    """What lies on the disk is private, and holds names and digests only; the log names no key."""
    daemon: Any = shared_keyed.daemon
    file = daemon.folder / "http.json"
    assert file.stat().st_mode & 0o777 == 0o600
    secret = daemon.key.removeprefix("dfl-")
    assert secret not in file.read_text()
    assert secret not in shared_keyed.log
    assert [key.name for key in http_keys(daemon.folder)] == ["app"]


def test_the_command_line_shows_a_key_once(shared_keyed: Gateway) -> None:
    """`keys new --http` prints it alone on stdout; `keys list` never does."""
    daemon: Any = shared_keyed.daemon

    def ctl(*words: str) -> str:
        command = [sys.executable, "-m", "dflashd.supervisor.cli", "keys", *words]
        command += ["--config", str(daemon.config)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    key = ctl("new", "--http", "phone").strip()
    assert shared_keyed.get("/v1/models", **{"x-api-key": key})[0] == 200
    listed = ctl("list") + ctl("list", "--json")
    assert "phone" in listed
    assert key not in listed
    ctl("revoke", "--http", "phone")
    assert shared_keyed.get("/v1/models", **{"x-api-key": key})[0] == 401


def test_without_any_key_nothing_listens_beyond_the_loopback() -> None:
    """Reachable from elsewhere and no key: the gateway waits and says for what, until there is."""
    daemon = GatewayDaemon({"a": {}}, free_port(), {"host": "0.0.0.0"})
    try:
        wait_for("it waits", lambda: daemon.status().services[0].state == "waiting")
        assert "dflashctl keys new --http" in daemon.status().services[0].reason
        shown = ctl(daemon, "status").stdout
        assert f"http     waiting  -    http://0.0.0.0:{daemon.port}" in shown
        assert "http: no API key exists: `dflashctl keys new --http NAME` makes one" in shown
        with daemon.client() as client:
            assert client.generate("a", "x").wait().tokens
        key = new_http_key(daemon.state_dir / "keys", "app")
        gateway = Gateway(daemon)
        assert gateway.get("/v1/models", **{"x-api-key": key})[0] == 200
        assert (gateway.service().state, gateway.service().reason) == ("running", "")
    finally:
        daemon.close()


def test_beyond_the_loopback_with_a_key_any_host_name_will_do() -> None:
    """With keys asked for, clients may call the machine what they like."""
    daemon = KeyedDaemon({"a": {}}, free_port(), {"host": "0.0.0.0"})
    try:
        gateway = Gateway(daemon)
        headers = {"host": "gpu.example.org", "x-api-key": daemon.key}
        assert gateway.get("/v1/models", **headers)[0] == 200
        assert "http_unencrypted" in gateway.log
    finally:
        daemon.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for the loopback, and its key."""
    pem, key = folder / "server.pem", folder / "server.key"
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command = ["openssl", *request.split()]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return pem, key


def test_tls_by_files(tmp_path: Path) -> None:
    """With a certificate it speaks https and nothing else; a key that all can read is refused."""
    pem, key = certificate(tmp_path)
    port, files = free_port(), {"tls_certificate": str(pem), "tls_key": str(key)}
    daemon = GatewayDaemon({"a": {}}, port, files)
    try:
        context = ssl.create_default_context(cafile=pem)

        def answered() -> int:
            connection = HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
            try:
                connection.request("GET", "/health/live")
                return connection.getresponse().status
            except OSError:
                return 0
            finally:
                connection.close()

        wait_for("it speaks TLS", lambda: answered() == 200)
        assert daemon.status().services[0].address.startswith("https://")
    finally:
        daemon.close()
    key.chmod(0o644)
    daemon = GatewayDaemon({"a": {}}, port, files)
    try:
        wait_for("it gives up", lambda: daemon.status().services[0].state == "fatal")
        assert "can be read by all" in daemon.status().services[0].reason
        key.chmod(0o600)
        with daemon.client() as client:
            client.reload()
        wait_for("it is revived", lambda: daemon.status().services[0].state == "running")
        wait_for("it speaks TLS", lambda: answered() == 200)
    finally:
        daemon.close()
