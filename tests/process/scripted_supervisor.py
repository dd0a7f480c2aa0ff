"""A scripted supervisor for one real worker process: a ROUTER, and words for what tests do."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import psutil
import zmq

from dflashd.protocol.codec import Message, decode, decode_body, encode
from dflashd.protocol.messages import (
    AddCredit,
    Assign,
    Body,
    Cancel,
    Chunk,
    ChunkBody,
    Done,
    DoneBody,
    Failed,
    FromWorker,
    GenerateBody,
    Header,
    Load,
    LoadBody,
    Loaded,
    Ping,
    Pong,
    Register,
    Registered,
)

H = TypeVar("H", bound=Header)

LIMIT_S = 60.0
"""Generous: imports and loads on a busy machine. A test that waits this long has failed."""

EPOCH = 7


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> float:
    """Wait for a condition of the outside world; the seconds it took."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < limit_s, f"not within {limit_s} s: {what}"
        time.sleep(0.002)
    return time.monotonic() - start_s


class Answers:
    """What was received about one request."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, ChunkBody]] = []
        self.done: DoneBody | None = None
        self.failed: Failed | None = None

    @property
    def ended(self) -> bool:
        return self.done is not None or self.failed is not None

    @property
    def text(self) -> str:
        return "".join(body.text for _, body in self.chunks)

    @property
    def tokens(self) -> list[int]:
        return [token for _, body in self.chunks for token in body.tokens]


class ScriptedSupervisor:
    """Binds a workers socket and starts ``python -m dflashd.worker`` on it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dfd", dir="/tmp"))
        self.endpoint = f"ipc://{self.folder}/workers.sock"
        self.secret = secrets.token_bytes(32)
        self.identity = f"w-{EPOCH}".encode()
        self.messages: list[Message] = []
        self.answers: dict[bytes, Answers] = {}
        self.worker: subprocess.Popen[bytes] | None = None
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(self.endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
            assert self.worker.stdin is not None
            self.worker.stdin.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self.folder)

    # --- the process -------------------------------------------------------------------------

    def environment(self, **changes: str) -> dict[str, str]:
        """What a worker is started with; an empty change leaves the variable out."""
        values = {
            "DFLASHD_WORKERS": self.endpoint,
            "DFLASHD_WORKER": "w",
            "DFLASHD_EPOCH": str(EPOCH),
            "DFLASHD_SECRET": self.secret.hex(),
            "DFLASHD_SUPERVISOR_PID": str(os.getpid()),
            **changes,
        }
        return {**os.environ, **{name: value for name, value in values.items() if value}}

    def start(self, **changes: str) -> subprocess.Popen[bytes]:
        """Start the worker with its log in a file."""
        with (self.folder / "log").open("wb") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "dflashd.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environment(**changes),
                start_new_session=True,
            )
        return self.worker

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def exit_status(self, limit_s: float = LIMIT_S) -> int:
        assert self.worker is not None
        return self.worker.wait(limit_s)

    def signal(self, number: signal.Signals) -> None:
        assert self.worker is not None
        self.worker.send_signal(number)

    # --- messages ----------------------------------------------------------------------------

    def send(self, header: Header, body: Body | None = None) -> None:
        self.send_frames(encode(header, body))

    def send_frames(self, frames: list[bytes]) -> None:
        self._router.send_multipart([self.identity, *frames])

    def receive(self, limit_s: float = LIMIT_S) -> Message | None:
        """The next message of the worker, entered into ``answers`` if it is about a request."""
        if not self._router.poll(max(0, int(limit_s * 1000))):
            return None
        identity, *frames = self._router.recv_multipart()
        assert identity == self.identity
        message = decode(frames, FromWorker)
        self.messages.append(message)
        self._enter(message)
        return message

    def _enter(self, message: Message) -> None:
        header = message.header
        if not isinstance(header, Chunk | Done | Failed):
            return
        assert header.id is not None
        assert header.epoch == EPOCH
        answers = self.answers.setdefault(header.id, Answers())
        assert not answers.ended, "something came after the end"
        if isinstance(header, Chunk):
            assert header.seq == len(answers.chunks)
            answers.chunks.append((header.seq, decode_body(ChunkBody, message.body)))
        elif isinstance(header, Done):
            answers.done = decode_body(DoneBody, message.body)
        else:
            answers.failed = header

    def receive_until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Receive until something is true of what was received."""
        until_s = time.monotonic() + limit_s
        while not condition():
            left_s = until_s - time.monotonic()
            assert left_s > 0, f"not within {limit_s} s; log of the worker:\n{self.log}"
            assert self.receive(left_s) is not None or condition(), self.log

    def expect(self, kind: type[H], limit_s: float = LIMIT_S) -> H:
        """Receive until a message of that kind comes."""
        found: list[H] = []

        def came() -> bool:
            last = self.messages[-1].header if self.messages else None
            if isinstance(last, kind):
                found.append(last)
            return bool(found)

        self.messages.clear()
        self.receive_until(came, limit_s)
        return found[0]

    def register(self) -> Register:
        """Take the worker in."""
        register = self.expect(Register)
        assert register.secret == self.secret
        self.send(Registered(epoch=EPOCH))
        return register

    def ping(self) -> Pong:
        """Ask how the worker is."""
        self.send(Ping(epoch=EPOCH, n=1))
        return self.expect(Pong)

    def until_steps(self, more: int) -> None:
        """Ping until a request is running and the engine has gone on by some steps."""
        first: int | None = None
        until_s = time.monotonic() + LIMIT_S
        while True:
            pong = self.ping()
            if pong.active and first is None:
                first = pong.steps
            if first is not None and pong.steps >= first + more:
                return
            assert time.monotonic() < until_s, self.log

    def load(self, model: str, body: LoadBody) -> Loaded:
        self.send(Load(epoch=EPOCH, model=model), body)
        return self.expect(Loaded)

    # --- requests ----------------------------------------------------------------------------

    def assign(
        self,
        model: str,
        body: GenerateBody,
        *,
        credit: int = 64,
        deadline_ms: int | None = None,
    ) -> bytes:
        id = secrets.token_bytes(16)
        self.answers[id] = Answers()
        self.send(
            Assign(
                id=id,
                epoch=EPOCH,
                model=model,
                credit=credit,
                deadline_ms=deadline_ms,
                queued_ms=3,
                load_ms=4,
            ),
            body,
        )
        return id

    def cancel(self, id: bytes) -> None:
        self.send(Cancel(id=id))

    def add_credit(self, id: bytes, chunks: int) -> None:
        self.send(AddCredit(id=id, chunks=chunks))

    def end_of(self, id: bytes, limit_s: float = LIMIT_S) -> Answers:
        """Receive until a request has ended; grants credit as a reader would."""
        answers = self.answers[id]
        granted = 0

        def worth_credit() -> bool:
            return answers.ended or len(answers.chunks) >= granted + 32

        while not answers.ended:
            self.receive_until(worth_credit, limit_s)
            if not answers.ended:
                granted += 32
                self.add_credit(id, 32)
        return answers
