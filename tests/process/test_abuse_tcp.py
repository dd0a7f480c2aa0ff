"""Hostile bytes on the one socket that strangers reach, and hostile clients with a key."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import zmq

from dflashd.protocol.codec import decode, encode
from dflashd.protocol.envelope import SIGNATURE
from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    AddCredit,
    Cancel,
    Failed,
    Generate,
    GenerateBody,
    Hello,
    ToClient,
)

from .daemon_process import wait_for
from .tcp_daemon import TcpDaemon
from .test_tcp import raw_dealer

GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
NULL_GREETING = GREETING.replace(b"CURVE", b"NULL\0")


@pytest.fixture
def daemon() -> Iterator[TcpDaemon]:
    """With a model that never ends, and a key."""
    made = TcpDaemon(
        {"a": {"chunks": 1_000_000, "chunk_s": 0.01}},
        {"app": "request"},
        "connections = 32\nmessage_bytes = 100000",
    )
    try:
        yield made
    finally:
        log = made.close()
    assert "internal_error" not in log, log


def hostile_beginnings(rng: random.Random) -> Iterator[bytes]:
    """What a stranger may send: noise, other protocols, handshakes that lie about their sizes."""
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01" + rng.randbytes(300)
    yield rng.randbytes(2000)
    yield NULL_GREETING + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\6DEALER"
    yield GREETING + b"\x06" + struct.pack(">Q", 2**62) + b"x" * 1000
    yield GREETING + b"\x06" + struct.pack(">Q", 90_000) + b"x" * 90_000
    yield GREETING + b"\x04\xc8" + b"\x05HELLO" + rng.randbytes(194)
    yield GREETING + b"\x04\x05\x04PING"
    yield GREETING[:20]


def test_strangers_bytes_disturb_nobody(daemon: TcpDaemon) -> None:
    """Noise, lies and half-open connections by the hundred: a stream goes on, memory stays."""
    host, port = daemon.address.removeprefix("tcp://").split(":")
    rng = random.Random(5)

    def storm() -> None:
        for _ in range(15):
            crowd: list[socket.socket] = []
            for beginning in hostile_beginnings(rng):
                with contextlib.suppress(OSError):
                    crowd.append(socket.create_connection((host, int(port)), timeout=5))
                    crowd[-1].sendall(beginning)
            for each in crowd:
                each.close()

    process = psutil.Process(daemon.child.pid)
    with daemon.remote("app") as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        storm()
        first = process.memory_info().rss
        storm()
        storm()
        for _ in range(20):
            next(chunks)
        assert process.memory_info().rss - first < 16 * 2**20
    wait_for("no descriptor is left", lambda: process.num_fds() < 60)


def test_a_clients_noise_is_its_own(daemon: TcpDaemon) -> None:
    """Malformed messages of an allowed key are answered one by one; what is too large cuts it."""
    context: zmq.Context[Any] = zmq.Context()
    key = daemon.allow("noisy")
    with daemon.remote("app") as client, context:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        own = connected(context, daemon, key)
        rng = random.Random(3)
        for _ in range(100):
            own.send_multipart([SIGNATURE, rng.randbytes(rng.randrange(100)), b""])
            own.send_multipart([rng.randbytes(5) for _ in range(rng.randrange(1, 6))])
        assert own.poll(5000)
        assert isinstance(decode(own.recv_multipart(), ToClient).header, Failed)
        monitor = own.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        own.send_multipart([SIGNATURE, b"x", b"x" * 200_000])
        assert monitor.poll(5000), "what is too large is taken"
        own.disable_monitor()
        monitor.close()
        own.close()
        assert next(chunks)


def test_knowing_an_id_gives_no_power_over_it(daemon: TcpDaemon) -> None:
    """Cancel, credit and reuse of another key's request id do nothing; a replay is refused."""
    context: zmq.Context[Any] = zmq.Context()
    key = daemon.allow("thief")
    with daemon.remote("app") as client, context:
        generation = client.generate("a", "x")
        chunks = iter(generation)
        next(chunks)
        thief = connected(context, daemon, key)
        thief.send_multipart(encode(Cancel(id=generation.id)))
        thief.send_multipart(encode(AddCredit(id=generation.id, chunks=64)))
        replay = encode(Generate(id=generation.id, model="a"), GenerateBody(prompt="x"))
        for _ in range(2):
            thief.send_multipart(replay)
            assert thief.poll(5000)
            failed = decode(thief.recv_multipart(), ToClient).header
            assert isinstance(failed, Failed)
            assert (failed.code, failed.id) == (ErrorCode.bad_request, None)
        for _ in range(10):
            next(chunks)
        assert not thief.poll(100)
        thief.close()


def connected(context: zmq.Context[Any], daemon: TcpDaemon, key: Any) -> zmq.Socket[bytes]:
    """A bare connection that has been welcomed, once the daemon knows the key."""

    def welcomed() -> zmq.Socket[bytes] | None:
        own = raw_dealer(context, daemon, key)
        own.send_multipart(encode(Hello()))
        if own.poll(500):
            own.recv_multipart()
            return own
        own.close()
        return None

    found = wait_for("it is welcomed", welcomed)
    assert found is not None
    return found
