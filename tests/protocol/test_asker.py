"""A question without an event loop ends as one with it: an answer, or a typed error in time."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from dflashd.protocol.absence import ConnectionLost
from dflashd.protocol.asker import Asker, ask_status
from dflashd.protocol.codec import decode, encode
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    Cancel,
    Done,
    Event,
    Failed,
    FromControl,
    Hello,
    Retire,
    Spawn,
    Status,
    Welcome,
)
from dflashd.protocol.paths import Endpoints

from .scripted_daemon import WAIT_S, ScriptedDaemon

Answer = Callable[[list[bytes]], list[bytes]]


WELCOME = encode(Welcome(instance="i", version="v"))


def anothers(_: list[bytes]) -> list[bytes]:
    """What somebody else waits for."""
    return encode(Failed(code=ErrorCode.internal, message="x", id=bytes(16)))


def answered(folder: Path, answer: Answer, *, greets: bool) -> DflashError:
    """The error that comes of a control socket that gives ``answer`` to the first question, or to
    the one behind the greeting.
    """
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind(Endpoints(folder).control)

        def serve() -> None:
            identity, *frames = router.recv_multipart()
            if greets:
                router.send_multipart([identity, *WELCOME])
                identity, *frames = router.recv_multipart()
            router.send_multipart([identity, *answer(frames)])

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DflashError) as caught:
            ask_status(folder, timeout_s=1 if answer is anothers else WAIT_S)
        thread.join(5)
    return caught.value


def test_a_daemon_answers(daemon: ScriptedDaemon) -> None:
    """The state comes back as the client library gives it."""
    assert ask_status(daemon.endpoints.runtime_dir).state == "serving"


def test_nobody_is_noticed_at_once(short_dir: Path) -> None:
    """Without a socket, or behind a dead one, the error says how to start a daemon."""
    for _ in range(2):
        with pytest.raises(DflashError, match="start one with") as caught:
            ask_status(short_dir, timeout_s=60)
        assert caught.value.code is ErrorCode.not_found
        with socket.socket(socket.AF_UNIX) as dead:
            if not (short_dir / "control.sock").exists():
                dead.bind(str(short_dir / "control.sock"))


def test_silence_ends_in_time(short_dir: Path) -> None:
    """Whoever listens and says nothing, or speaks of something else, is not waited for."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "control.sock"))
        listener.listen()
        with pytest.raises(DflashError, match="does not answer") as caught:
            ask_status(short_dir, timeout_s=0.2)
        assert caught.value.code is ErrorCode.worker_lost


def fill(path: Path, connections: ExitStack) -> None:
    """Connect until no other connection fits in."""
    while True:
        client = connections.enter_context(socket.socket(socket.AF_UNIX))
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:
            return


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac refuses what does not fit in")
def test_a_full_queue_is_not_nobody(short_dir: Path) -> None:
    """A daemon that has yet to let others in is waited for, and then called silent, not absent."""
    path = short_dir / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as connections:
        listener.bind(str(path))
        listener.listen(1)
        fill(path, connections)
        with pytest.raises(DflashError, match="does not answer") as caught:
            ask_status(short_dir, timeout_s=0.2)
        assert caught.value.code is ErrorCode.worker_lost


@pytest.mark.parametrize("greets", [False, True])
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda _: [b"HTTP/1.1", b"400", b""], ErrorCode.protocol),
        (
            lambda _: encode(Failed(code=ErrorCode.shutting_down, message="no")),
            ErrorCode.shutting_down,
        ),
        (anothers, ErrorCode.worker_lost),
        (lambda frames: [frames[0], b"\xc1", b""], ErrorCode.protocol),
    ],
)
def test_other_answers_are_typed_errors(
    short_dir: Path, answer: Answer, code: ErrorCode, greets: bool
) -> None:
    """A refusal is raised as it is, a stranger is named, another's answer is passed over."""
    error = answered(short_dir, answer, greets=greets)
    assert error.code is code


def test_an_answer_to_something_else_is_a_strangers(short_dir: Path) -> None:
    """What ends another kind of question is no answer to this one."""

    def done(frames: list[bytes]) -> list[bytes]:
        header = decode(frames, FromControl).header
        assert isinstance(header, Status)
        return encode(Done(id=header.id))

    assert answered(short_dir, done, greets=True).code is ErrorCode.protocol


def test_a_load_tells_how_far_it_is(daemon: ScriptedDaemon) -> None:
    """Every report of a long answer is handed on as it comes."""
    told: list[Accepted | Event] = []
    with Asker(daemon.endpoints.runtime_dir) as asker:
        asker.spawn("m", told.append)
        asker.retire("m", now=True)
    assert [event.done for event in told if isinstance(event, Event)] == [0, 1, 2]
    assert daemon.expect(Retire)[0].now


def test_a_long_answer_is_waited_for_while_the_daemon_lives(daemon: ScriptedDaemon) -> None:
    """Only a daemon that answers no greeting any more is given up, however long a load takes."""

    def fall_silent() -> None:
        daemon.expect(Hello, 3)
        daemon.mute = True

    silencer = threading.Thread(target=fall_silent)
    silencer.start()
    with Asker(daemon.endpoints.runtime_dir, timeout_s=2) as asker:
        with pytest.raises(DflashError, match="does not answer") as caught:
            asker.spawn("slow")
        assert len(daemon.expect(Hello)) >= 3
        silencer.join(WAIT_S)
    assert caught.value.code is ErrorCode.worker_lost


def test_a_daemon_that_dies_is_noticed_at_once(short_dir: Path) -> None:
    """What waits fails as soon as the connection goes, and so does what is asked later."""
    with ExitStack() as stack:
        daemon = stack.enter_context(ScriptedDaemon(short_dir))
        with Asker(short_dir, timeout_s=WAIT_S) as asker:

            def die() -> None:
                daemon.expect(Spawn)
                stack.close()

            killer = threading.Thread(target=die)
            killer.start()
            with pytest.raises(ConnectionLost, match="closed the connection") as caught:
                asker.spawn("slow")
            assert caught.value.retryable
            killer.join(WAIT_S)
            with pytest.raises(ConnectionLost):
                asker.status()


@pytest.mark.parametrize("says_so", [True, False])
def test_a_shutdown_ends_with_the_connection(short_dir: Path, says_so: bool) -> None:
    """A daemon that leaves without a word has stopped; one that is silent has not."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind(Endpoints(short_dir).control)

        def serve() -> None:
            identity, *_ = router.recv_multipart()
            router.send_multipart([identity, *WELCOME])
            _ = router.recv_multipart()
            if says_so:
                router.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with Asker(short_dir, timeout_s=WAIT_S if says_so else 0.2) as asker:
            if says_so:
                asker.shutdown()
            else:
                with pytest.raises(DflashError, match="does not answer"):
                    asker.shutdown()
        thread.join(WAIT_S)


def test_what_is_left_early_is_cancelled(daemon: ScriptedDaemon) -> None:
    """Whoever does not wait for an answer takes the question back."""

    def leave(_: Accepted | Event) -> None:
        raise KeyboardInterrupt

    with Asker(daemon.endpoints.runtime_dir) as asker, pytest.raises(KeyboardInterrupt):
        asker.spawn("m", leave)
    assert [cancel.id for cancel in daemon.expect(Cancel)] == [daemon.expect(Spawn)[0].id]


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "3", None])
def test_a_wait_must_have_an_end(short_dir: Path, timeout_s: Any) -> None:
    """A timeout that is none is refused by its name."""
    with pytest.raises(DflashError, match="timeout_s") as caught:
        Asker(short_dir, timeout_s=timeout_s)
    assert caught.value.code is ErrorCode.bad_request
