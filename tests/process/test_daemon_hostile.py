"""Bytes and clients that mean no good: a typed answer or a closed door, and no one else notices."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from dflashd.protocol import DflashError
from dflashd.protocol.asker import ask_status
from dflashd.protocol.codec import decode, encode
from dflashd.protocol.envelope import SIGNATURE
from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    AddCredit,
    Cancel,
    Chunk,
    Done,
    Failed,
    Generate,
    GenerateBody,
    Register,
    Status,
    ToClient,
)

from .daemon_process import DaemonProcess, wait_for

MakeDaemon = Callable[..., DaemonProcess]
DOORS = ("requests", "control", "workers")


@contextmanager
def dealer(path: Path, identity: bytes | None = None) -> Generator[zmq.Socket[bytes]]:
    """A bare connection that may send anything."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as own:
        own.setsockopt(zmq.LINGER, 30_000)
        if identity is not None:
            own.setsockopt(zmq.ROUTING_ID, identity)
        own.connect(f"ipc://{path}")
        yield own
    context.term()


def receive(own: zmq.Socket[bytes]) -> Any:
    """The next message within a deadline."""
    assert own.poll(5000), "no answer"
    return decode(own.recv_multipart(), ToClient).header


def hostile_messages(seed: int) -> Iterator[list[bytes]]:
    """Random, truncated, nested, oversized, foreign: everything but a message."""
    rng = random.Random(seed)
    good = encode(Generate(id=b"h" * 16, model="a"), GenerateBody(prompt="x"))
    for _ in range(60):
        yield [rng.randbytes(rng.randrange(0, 200)) for _ in range(rng.randrange(1, 6))]
        yield [SIGNATURE, rng.randbytes(rng.randrange(0, 100)), b""]
        cut = rng.randrange(len(good[1]))
        yield [good[0], good[1][:cut], good[2]]
    yield [b"DFLASHD\x09", good[1], good[2]]
    yield [SIGNATURE, b"\x91" * 5000, b""]
    yield [SIGNATURE, b"\x81\xa4kind\xa5dance", b""]
    yield [SIGNATURE, b"x" * 20_000, b""]
    yield [SIGNATURE] + [b""] * 50


@pytest.mark.parametrize("door", DOORS)
def test_hostile_bytes_disturb_nobody(make_daemon: MakeDaemon, door: str) -> None:
    """Garbage on any socket is answered or ignored while another client streams undisturbed."""
    daemon = make_daemon({"a": {"chunks": 300, "chunk_s": 0.005}})
    path = daemon.runtime_dir / f"{door}.sock"
    results: list[int] = []

    def stream() -> None:
        with daemon.client() as client:
            results.append(len(client.generate("a", "x").wait().tokens))

    streaming = threading.Thread(target=stream)
    streaming.start()
    with dealer(path) as attacker:
        for message in hostile_messages(7):
            attacker.send_multipart(message)
        last = b"l" * 16
        attacker.send_multipart([SIGNATURE, b"\x82\xa4kind\xa5dance\xa2id\xc4\x10" + last, b""])
        # All answers are read: a connection closed before would be reset, and lose what it sent.
        while (failed := receive(attacker)).id != last:
            assert isinstance(failed, Failed)
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(random.Random(1).randbytes(300))
    streaming.join(30)
    assert results == [300]
    least = {f"{door}_malformed": 50, f"{door}_strangers": 10}
    with daemon.client() as client:
        wait_for(
            "it is counted",
            lambda: all(
                client.status().counters.get(name, 0) > count for name, count in least.items()
            ),
        )


def test_each_fault_has_its_own_typed_answer(make_daemon: MakeDaemon) -> None:
    """Wrong version, kind or field: each is named, with the request's id if readable."""
    daemon = make_daemon({"a": {}})
    with dealer(daemon.runtime_dir / "requests.sock") as own:
        own.send_multipart([b"DFLASHD\x09", b"\x80", b""])
        assert receive(own).code is ErrorCode.unsupported
        own.send_multipart([SIGNATURE, b"\x82\xa4kind\xa8generate\xa2id\xc4\x10" + b"i" * 16, b""])
        failed = receive(own)
        assert (failed.code, failed.id) == (ErrorCode.bad_request, b"i" * 16)
        own.send_multipart(encode(Status(id=b"s" * 16)))
        assert receive(own).code is ErrorCode.protocol


def test_another_clients_request_cannot_be_touched(make_daemon: MakeDaemon) -> None:
    """Knowing an id gives no power over it: cancel, credit and reuse from elsewhere do nothing."""
    daemon = make_daemon({"a": {"chunks": 60, "chunk_s": 0.02}})
    with daemon.client() as client, dealer(daemon.runtime_dir / "requests.sock") as thief:
        generation = client.generate("a", "x")
        chunks = iter(generation)
        next(chunks)
        thief.send_multipart(encode(Cancel(id=generation.id)))
        thief.send_multipart(encode(AddCredit(id=generation.id, chunks=64)))
        again = Generate(id=generation.id, model="a")
        thief.send_multipart(encode(again, GenerateBody(prompt="x")))
        failed = receive(thief)
        assert (failed.code, failed.id) == (ErrorCode.bad_request, None)
        assert len(list(chunks)) == 59


def test_unregistered_worker_is_no_worker(make_daemon: MakeDaemon) -> None:
    """Without the secret nobody speaks for a worker, whatever name it takes."""
    daemon = make_daemon({"a": {"chunks": 60, "chunk_s": 0.02}})
    with daemon.client() as client:
        generation = client.generate("a", "x")
        chunks = iter(generation)
        next(chunks)
        with dealer(daemon.runtime_dir / "workers.sock", b"a-2") as forger:
            forger.send_multipart(encode(Chunk(id=generation.id, seq=1, epoch=1), b"\x80"))
            forger.send_multipart(encode(Done(id=generation.id, epoch=1)))
            register = Register(worker="a", epoch=2, pid=1, secret=b"guess" * 4)
            forger.send_multipart(encode(register))
            for _ in range(3):
                assert receive(forger).code is ErrorCode.unauthorised
        assert len(list(chunks)) == 59
        assert client.status().counters["workers_unauthorised"] == 3


def test_slow_reader_loses_only_its_own_request(make_daemon: MakeDaemon) -> None:
    """A client that grants credit but never reads is cut off; others go on."""
    daemon = make_daemon(
        {"a": {"chunks": 1_000_000, "chunk_s": 0.0, "text": "x" * 20_000}, "b": {}}
    )
    with daemon.client() as client, dealer(daemon.runtime_dir / "requests.sock") as slow:
        slow.setsockopt(zmq.RCVHWM, 1)
        id = b"s" * 16
        slow.send_multipart(encode(Generate(id=id, model="a"), GenerateBody(prompt="x")))
        wait_for("it runs", lambda: client.status().models[0].active == 1)

        def cut_off() -> bool:
            for _ in range(50):
                slow.send_multipart(encode(AddCredit(id=id, chunks=64)))
            return client.status().counters.get("slow_consumer", 0) == 1

        wait_for("it is cut off", cut_off, 40)
        assert client.generate("b", "x").wait().text
        wait_for("its place is free", lambda: client.status().models[0].active == 0)


def test_client_without_credit_holds_nothing_up(make_daemon: MakeDaemon) -> None:
    """A client that reads nothing stops its own request only; the same worker serves others."""
    daemon = make_daemon({"a": {"chunks": 300, "chunk_s": 0.0}})
    with daemon.client() as client:
        idle = client.generate("a", "x")
        assert len(client.generate("a", "x").wait().tokens) == 300
        assert client.status().counters["chunks"] == 300 + 64
        assert len(idle.wait().tokens) == 300


def test_flood_of_requests_is_bounded(make_daemon: MakeDaemon) -> None:
    """More requests than its share are refused one by one, and another client still gets in."""
    daemon = make_daemon({"a": {"load_s": 60.0}}, queued_requests_per_model=100)
    with daemon.client() as client, daemon.client() as another:
        generations = [client.generate("a", "x") for _ in range(300)]
        codes: list[ErrorCode] = []
        for generation in generations[50:]:
            with pytest.raises(DflashError) as caught:
                generation.wait()
            codes.append(caught.value.code)
        assert codes == [ErrorCode.overloaded] * 250
        assert client.status().models[0].queued == 50
        waiting = another.generate("a", "x")
        wait_for("it waits", lambda: client.status().models[0].queued == 51)
        waiting.cancel()


NAMES = """
import ctypes, struct
libc = ctypes.CDLL(None)
drawn = [libc.rand() for _ in range(40)]
for low, high in zip(drawn, drawn[1:]):
    for place in range(1, 8):
        name = ((low | high << 31) + place) % 2**32
        print((bytes(1) + struct.pack(">I", name)).hex())
"""
"""What libzmq calls its connections in a process that draws its numbers as any other does."""


@pytest.mark.parametrize("door", DOORS)
def test_nobody_guesses_what_another_will_be_called(make_daemon: MakeDaemon, door: str) -> None:
    """Names that libzmq would give next in an unprepared process do not end the daemon."""
    daemon = make_daemon({"a": {}})
    path = daemon.runtime_dir / f"{door}.sock"
    told = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, check=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def connect(name: bytes | None = None) -> None:
        own = context.socket(zmq.DEALER)
        if name is not None:
            own.setsockopt(zmq.ROUTING_ID, name)
        own.connect(f"ipc://{path}")
        own.send(b"x")

    try:
        names = told.stdout.split()
        for name in names:
            connect(bytes.fromhex(name))
        for _ in range(20):
            connect()
        assert ask_status(daemon.runtime_dir).state == "serving"
        strangers = f"{door}_strangers"

        def heard() -> bool:
            return ask_status(daemon.runtime_dir).counters.get(strangers, 0) == len(names) + 20

        wait_for("all have spoken", heard)
    finally:
        context.destroy(linger=0)
