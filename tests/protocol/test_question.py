"""A question without an event loop ends as one with it: an answer, or a typed error in time."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from dflashd.protocol.codec import encode
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import Failed, Welcome
from dflashd.protocol.paths import Endpoints
from dflashd.protocol.question import ask_status

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
    """A second welcome is no answer to a question."""
    error = answered(short_dir, lambda _: WELCOME, greets=True)
    assert error.code is ErrorCode.protocol
