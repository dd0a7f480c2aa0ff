"""Clients of other machines: who has an allowed key gets in, as what the key is for."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.codec import decode, encode
from dflashd.protocol.messages import Generate, GenerateBody, Hello, ToClient, Welcome
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.keys.client_keys import Role, revoke

from .daemon_process import wait_for
from .tcp_daemon import TcpDaemon

pytestmark = pytest.mark.slow

ENDLESS = {"chunks": 1_000_000, "chunk_s": 0.01}
MakeTcp = Callable[..., TcpDaemon]


@pytest.fixture
def make_tcp() -> Iterator[MakeTcp]:
    """A maker of daemons on tcp: ``make_tcp({model: flags}, {key: role}, lines)``."""
    made: list[TcpDaemon] = []

    def make(
        models: dict[str, dict[str, Any]], keys: dict[str, Role] | None = None, tcp: str = ""
    ) -> TcpDaemon:
        made.append(TcpDaemon(models, keys or {}, tcp))
        return made[-1]

    yield make
    logs = [daemon.close() for daemon in made]
    assert not any("internal_error" in log for log in logs), logs


def service(daemon: TcpDaemon) -> Any:
    """What the status says of the listener."""
    (found,) = (each for each in daemon.status().services if each.name == "tcp")
    return found


def error_of(client: Client, ask: Callable[[Client], object] = Client.status) -> DflashError:
    """What a client fails with."""
    with pytest.raises(DflashError) as caught, client:
        ask(client)
    return caught.value


def ctl(daemon: TcpDaemon, *words: str) -> subprocess.CompletedProcess[str]:
    """Run dflashctl."""
    command = [sys.executable, "-m", "dflashd.supervisor.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=daemon.home
    )


def raw_dealer(
    context: zmq.Context[Any], daemon: TcpDaemon, key: Any, identity: bytes | None = None
) -> zmq.Socket[bytes]:
    """A bare connection with a key."""
    own = context.socket(zmq.DEALER)
    own.setsockopt(zmq.LINGER, 0)
    if key is not None:
        own.curve_serverkey = key.server.encode()
        own.curve_publickey = key.public.encode()
        own.curve_secretkey = key.secret.encode()
    if identity is not None:
        own.setsockopt(zmq.ROUTING_ID, identity)
    own.connect(daemon.address)
    return own


def test_an_allowed_key_generates_and_a_control_key_controls(make_tcp: MakeTcp) -> None:
    """Over tcp with a key all is as on the machine itself, as far as the key's role goes."""
    daemon = make_tcp({"a": {"chunks": 20}}, {"ops": "control"}, "control = true")
    with daemon.remote("ops") as client:
        assert len(client.generate("a", "x").wait().tokens) == 20
        assert [model.name for model in client.status().models] == ["a"]
        client.retire("a")
        client.spawn("a")
        assert any(event.name == "tcp_opened" for event in client.events())
    assert service(daemon).state == "listening"
    elsewhere = ("--connect", daemon.address, "--key", str(daemon.key_of("ops")))
    assert json.loads(ctl(daemon, *elsewhere, "spawn", "a", "--json").stdout)["state"] == "ready"
    left = json.loads(ctl(daemon, *elsewhere, "shutdown", "--json").stdout)
    assert left["state"] == "stopping"


def test_a_request_key_cannot_control(make_tcp: MakeTcp) -> None:
    """A key for generations may not look, spawn, or stop the daemon; the refusal is typed."""
    daemon = make_tcp({"a": {}}, {"app": "request"}, "control = true")
    with daemon.remote("app") as client:
        assert client.generate("a", "x").wait().tokens
    for ask in (Client.status, Client.metrics, Client.shutdown, lambda c: c.spawn("a")):
        assert error_of(daemon.remote("app"), ask).code is ErrorCode.unauthorised
    assert daemon.status().state == "serving"


def test_connections_with_one_key_have_one_share_of_the_queues(make_tcp: MakeTcp) -> None:
    """Who connects more often has no more waiting; another key still finds a place."""
    daemon = make_tcp({"a": {"load_s": 60.0}}, {"app": "request", "other": "request"})
    most = Limits().queued_requests_per_model // 2
    with daemon.remote("app") as one, daemon.remote("app") as two, daemon.remote("other") as third:
        waiting = [one.generate("a", "x") for _ in range(most)]
        wait_for("they wait", lambda: daemon.status().models[0].queued == most)
        with pytest.raises(DflashError) as caught:
            two.generate("a", "x").wait()
        assert caught.value.code is ErrorCode.overloaded
        waiting.append(third.generate("a", "x"))
        wait_for("it waits, too", lambda: daemon.status().models[0].queued == most + 1)
        for generation in waiting:
            generation.cancel()


def test_control_over_tcp_is_off_unless_said_so(make_tcp: MakeTcp) -> None:
    """Without ``control = true`` even a control key only generates."""
    daemon = make_tcp({"a": {}}, {"ops": "control"})
    assert error_of(daemon.remote("ops")).code is ErrorCode.unauthorised
    with daemon.remote("ops") as client:
        assert client.generate("a", "x").wait().tokens


def test_strangers_do_not_get_in(make_tcp: MakeTcp) -> None:
    """An unknown key, a key for another daemon, and no key are refused, and say so in time."""
    daemon = make_tcp({"a": {}}, {"app": "request"})
    daemon.make_key("stranger")
    assert error_of(daemon.remote("stranger")).code is ErrorCode.unauthorised
    other = zmq.curve_keypair()[0].decode()
    daemon.make_key("lost", server=other)
    lost = error_of(daemon.remote("lost", timeout_s=1))
    assert lost.code is ErrorCode.unauthorised
    assert "key file was made for" in lost.message
    keyless = error_of(Client(connect=daemon.address, timeout_s=1, wait_s=0))
    assert keyless.code is ErrorCode.unauthorised


def test_revoking_cuts_a_live_stream(make_tcp: MakeTcp) -> None:
    """A revoked key's stream ends at once, its request in the worker too; others go on."""
    daemon = make_tcp({"a": ENDLESS}, {"thief": "request", "app": "request"})
    with daemon.remote("thief") as thief, daemon.remote("app") as app:
        stolen, own = iter(thief.generate("a", "x")), iter(app.generate("a", "x"))
        next(stolen)
        next(own)
        revoke(daemon.folder, "thief")
        with pytest.raises(DflashError) as caught:
            for _ in stolen:
                pass
        assert caught.value.code is ErrorCode.worker_lost
        wait_for("its place is free", lambda: daemon.status().models[0].active == 1)
        assert next(own)
        assert error_of(daemon.remote("thief")).code is ErrorCode.unauthorised
    with daemon.client() as client:
        revoked = [event for event in client.events() if event.name == "tcp_key_revoked"]
    assert [event.fields["key"] for event in revoked] == ["thief"]


def test_an_idle_revoked_connection_is_cut_when_it_speaks(make_tcp: MakeTcp) -> None:
    """Who only shook hands before it was revoked is cut off with its first word, unanswered."""
    daemon = make_tcp({"a": {}}, {"app": "request"})
    key = daemon.allow("other")
    wait_for("it is allowed", lambda: gets_welcome(daemon, key, None))
    context: zmq.Context[Any] = zmq.Context()
    with context:
        own = raw_dealer(context, daemon, key)
        monitor = own.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        assert monitor.poll(10_000)
        monitor.recv_multipart()
        revoke(daemon.folder, "other")
        wait_for(
            "it is noticed",
            lambda: "tcp_key_revoked" in [event.name for event in daemon.client().events()],
        )
        own.send_multipart(encode(Hello()))
        assert monitor.poll(5000), "it was not cut"
        assert not own.poll(0)
        own.close()
        monitor.close()
    assert daemon.status().counters["tcp_cut"] >= 1


@pytest.mark.parametrize("identity", [b"victim", b"\0\0\0\0\1"])
def test_a_chosen_identity_is_worth_nothing(make_tcp: MakeTcp, identity: bytes) -> None:
    """A client that names itself is given another name or cut off: it answers to no one's name."""
    daemon = make_tcp({"a": {}}, {"app": "request"})
    key = daemon.allow("forger")
    wait_for("it is allowed", lambda: gets_welcome(daemon, key, None))
    for _ in range(20):
        # By whatever race: it works under a name that nobody can guess, or not at all.
        assert gets_welcome(daemon, key, identity)
    with daemon.remote("app") as client:
        assert client.generate("a", "x").wait().tokens


def gets_welcome(daemon: TcpDaemon, key: Any, identity: bytes | None) -> bool:
    """Whether hello is answered; asked again after each cut, as our own client does."""
    context: zmq.Context[Any] = zmq.Context()
    with context:
        own = raw_dealer(context, daemon, key, identity)
        try:
            for _ in range(10):
                with contextlib.suppress(zmq.Again):  # refused, or on its way to come again
                    own.send_multipart(encode(Hello()), zmq.DONTWAIT)
                if own.poll(200):
                    return isinstance(decode(own.recv_multipart(), ToClient).header, Welcome)
            return False
        finally:
            own.close()


def test_a_duplicate_of_a_live_client_takes_nothing_from_it(make_tcp: MakeTcp) -> None:
    """Two connections of one key under one chosen name: each hears of its own request only."""
    daemon = make_tcp({"a": {"chunks": 30, "chunk_s": 0.01}}, {"app": "request"})
    key = daemon.allow("twin")
    wait_for("it is allowed", lambda: gets_welcome(daemon, key, None))
    context: zmq.Context[Any] = zmq.Context()
    with context:
        twins = [raw_dealer(context, daemon, key, b"same") for _ in range(2)]
        for number, twin in enumerate(twins):
            asked = encode(Generate(id=bytes([number]) * 16, model="a"), GenerateBody(prompt="x"))
            for _ in range(20):
                twin.send_multipart(asked)
                if twin.poll(500):
                    break
        for number, twin in enumerate(twins):
            heard = 0
            while twin.poll(20_000 if heard < 30 else 500):
                header = decode(twin.recv_multipart(), ToClient).header
                assert getattr(header, "id", None) in (bytes([number]) * 16, None)
                heard += 1
            assert heard >= 30
            twin.close()


def test_listening_begins_with_the_first_key_and_ends_with_the_last(make_tcp: MakeTcp) -> None:
    """Without any key nobody listens; the command line allows and revokes while it runs."""
    daemon = make_tcp({"a": {}})
    assert (service(daemon).state, "keys new" in service(daemon).reason) == ("waiting", True)
    nobody = error_of(Client(connect=daemon.address, timeout_s=2, wait_s=0))
    assert nobody.code is ErrorCode.not_found
    config = ("--config", str(daemon.config))
    made = ctl(daemon, "keys", "new", "laptop", *config)
    assert made.returncode == 0, made.stderr
    assert os.stat(daemon.key_of("laptop")).st_mode & 0o777 == 0o600
    wait_for("it listens", lambda: service(daemon).state == "listening")
    with daemon.remote("laptop") as client:
        assert client.generate("a", "x").wait().tokens
    listed = ctl(daemon, "keys", "list", *config).stdout
    assert "laptop" in listed
    assert "request" in listed
    asked = ctl(
        daemon, "--connect", daemon.address, "--key", "laptop.key", "generate", "a", "x", "--raw"
    )
    assert (asked.returncode, bool(asked.stdout)) == (0, True), asked.stderr
    refused = ctl(daemon, "--connect", daemon.address, "--key", "laptop.key", "status")
    assert (refused.returncode, "unauthorised" in refused.stderr) == (5, True), refused
    assert ctl(daemon, "keys", "revoke", "laptop", *config).returncode == 0
    wait_for("it closes", lambda: service(daemon).state == "waiting")
    assert ctl(daemon, "keys", "revoke", "laptop", *config).returncode == 5


def test_a_key_made_elsewhere_is_allowed_by_its_public_half(make_tcp: MakeTcp) -> None:
    """The secret need never leave the client: the owner allows the public half."""
    daemon = make_tcp({"a": {}})
    config = ("--config", str(daemon.config))
    server = ctl(daemon, "keys", "list", *config).stdout.split()[-1]
    made = ctl(daemon, "keys", "new", "desk", "--server", server)
    assert made.returncode == 0, made.stderr
    public = made.stdout.split("'")[1]
    assert ctl(daemon, "keys", "allow", "desk", public, *config).returncode == 0
    wait_for("it listens", lambda: service(daemon).state == "listening")
    with daemon.remote("desk") as client:
        assert client.generate("a", "x").wait().tokens


def test_a_key_file_that_others_can_read_is_not_used(make_tcp: MakeTcp) -> None:
    """The client refuses an open key file; the daemon shuts out all when its own list is open."""
    daemon = make_tcp({"a": {}}, {"app": "request"})
    daemon.key_of("app").chmod(0o644)
    with pytest.raises(DflashError, match="chmod 600"):
        daemon.remote("app")
    (daemon.folder / "clients.json").chmod(0o666)
    wait_for("it closes", lambda: service(daemon).state == "waiting")
    assert "open to other users" in service(daemon).reason


def test_without_keys_on_the_loopback_only_when_said_so(make_tcp: MakeTcp) -> None:
    """``insecure_loopback`` serves the machine's users without keys, and the status says so."""
    daemon = make_tcp({"a": {}}, {}, "insecure_loopback = true\ncontrol = true")
    with Client(connect=daemon.address, timeout_s=20) as client:
        assert client.generate("a", "x").wait().tokens
        assert client.status().models
    assert "without keys" in service(daemon).reason


def test_too_many_connections_are_cut_and_those_inside_stay(make_tcp: MakeTcp) -> None:
    """Half-open connections beyond the limit are cut at once; strangers leave after seconds."""
    daemon = make_tcp({"a": ENDLESS}, {"app": "request"}, "connections = 8")
    host, port = daemon.address.removeprefix("tcp://").split(":")
    with daemon.remote("app") as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        crowd = [socket.create_connection((host, int(port)), timeout=20) for _ in range(40)]
        try:
            wait_for(
                "most are cut", lambda: daemon.status().counters.get("tcp_turned_away", 0) >= 30
            )
            assert next(chunks)
            crowd[-1].settimeout(20)
            try:
                while crowd[-1].recv(64):
                    pass
            except ConnectionResetError:
                pass
        finally:
            for each in crowd:
                each.close()
    with daemon.remote("app", wait_s=10) as client:
        next(iter(client.generate("a", "x")))
