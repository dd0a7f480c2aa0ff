"""Too many of anything: connections, large messages, clients that do not read."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

import psutil
import pytest
import zmq

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.codec import decode, encode
from dflashd.protocol.messages import (
    Accepted,
    AddCredit,
    Failed,
    Generate,
    GenerateBody,
    Header,
    ToClient,
)

from .daemon_process import DaemonProcess, wait_for

MakeDaemon = Callable[..., DaemonProcess]
FILES = 256


def test_crowd_of_connections_is_refused_and_aborts_nothing(make_daemon: MakeDaemon) -> None:
    """Out of descriptors: new clients are refused with a sentence, who is there is served on."""
    daemon = make_daemon({"a": {"chunks": 100_000}, "b": {}})
    psutil.Process(daemon.child.pid).rlimit(psutil.RLIMIT_NOFILE, (FILES, FILES))
    path = daemon.runtime_dir / "requests.sock"
    with daemon.client() as client, ExitStack() as crowd:
        running = iter(client.generate("a", "x"))
        next(running)
        for number in range(4 * FILES):
            one = crowd.enter_context(socket.socket(socket.AF_UNIX))
            if one.connect_ex(str(path)):
                break
            if number > FILES / 4:  # as a crowd comes, not as an attack does
                wait_for("it was let in", lambda n=number: files(daemon) > n or not path.exists())
        assert not path.exists()
        with (
            pytest.raises(DflashError, match="no room") as refused,
            Client(daemon.runtime_dir, timeout_s=0.5),
        ):
            pass
        assert (refused.value.code, refused.value.retryable) == (ErrorCode.overloaded, True)
        next(running)
        assert client.generate("b", "x").wait().text  # a new worker takes descriptors, too
        crowd.close()
        wait_for("the door is open again", path.exists)
        with daemon.client() as another:
            assert another.generate("b", "x").wait().text


def files(daemon: DaemonProcess) -> int:
    return psutil.Process(daemon.child.pid).num_fds()


def test_flood_of_large_prompts_is_refused_and_holds_bounded_memory(
    make_daemon: MakeDaemon,
) -> None:
    """What waits is bounded in bytes over all clients; the others are told when to retry."""
    room, prompt, clients, each = 32 * 2**20, "x" * (4 * 2**20), 24, 4
    daemon = make_daemon(
        {"a": {"chunks": 100_000}}, queued_bytes=room, active_requests_per_worker=2
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    body = GenerateBody(prompt=prompt)
    with daemon.client() as client, ExitStack() as crowd:
        client.spawn("a")
        process = psutil.Process(daemon.child.pid)
        before, most = process.memory_info().rss, 0
        answers: dict[bytes, list[Header]] = {}
        flood = [crowd.enter_context(context.socket(zmq.DEALER)) for _ in range(clients)]
        for number, one in enumerate(flood):
            one.setsockopt(zmq.LINGER, 0)
            one.connect(f"ipc://{daemon.runtime_dir / 'requests.sock'}")
            for nth in range(each):
                id = bytes([number, nth]) * 8
                answers[id] = []
                one.send_multipart(encode(Generate(id=id, model="a"), body))

        def all_answered() -> bool:
            nonlocal most
            most = max(most, process.memory_info().rss - before)
            for one in flood:
                while one.poll(0):
                    header = decode(one.recv_multipart(), ToClient).header
                    if isinstance(header, Accepted | Failed):  # the first ones have chunks, too
                        answers[header.id or b""].append(header)
            return all(answers.values())

        wait_for("all are answered", all_answered, 60)
        refused = [h for heard in answers.values() for h in heard if isinstance(h, Failed)]
        waiting = client.status().models[0].queued
        assert waiting * len(prompt) <= room
        assert len(refused) == clients * each - waiting - 2
        assert {h.code for h in refused} == {ErrorCode.overloaded}
        assert all(h.retryable and h.retry_after_s for h in refused)
        assert most < clients * each * len(prompt) / 2, "what was refused was held, too"
    context.term()
    wait_for("they are gone", lambda: daemon.status().models[0].queued == 0)


def test_crowd_that_does_not_read_holds_bounded_memory(make_daemon: MakeDaemon) -> None:
    """Many clients that grant credit and never read are cut off, and hold bounded memory."""
    chunk = "x" * 100_000
    daemon = make_daemon(
        {"a": {"chunks": 100_000, "chunk_s": 0.0, "text": chunk}, "b": {}},
        active_requests_per_worker=32,
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with daemon.client() as client, ExitStack() as crowd:
        client.spawn("a")
        process = psutil.Process(daemon.child.pid)
        before = process.memory_info().rss
        slow = [crowd.enter_context(context.socket(zmq.DEALER)) for _ in range(24)]
        for number, one in enumerate(slow):
            one.setsockopt(zmq.LINGER, 0)
            one.setsockopt(zmq.RCVHWM, 1)
            one.connect(f"ipc://{daemon.runtime_dir / 'requests.sock'}")
            header = Generate(id=bytes([number]) * 16, model="a")
            one.send_multipart(encode(header, GenerateBody(prompt="x")))

        def all_cut_off() -> bool:
            for number, one in enumerate(slow):
                one.send_multipart(encode(AddCredit(id=bytes([number]) * 16, chunks=64)))
            return client.status().counters.get("slow_consumer", 0) == len(slow)

        wait_for("all are cut off", all_cut_off, 120)
        assert process.memory_info().rss - before < 800 * 2**20
        assert client.generate("b", "x").wait().text
    context.term()
