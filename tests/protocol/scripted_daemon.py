"""A daemon of one thread that speaks the real protocol over real sockets, and misbehaves on cue.

The model's name in a Generate says how it is answered; its prompt how many chunks there are.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import zmq

from dflashd.protocol.codec import Message, decode, decode_body, encode
from dflashd.protocol.credit import SendWindow
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    WINDOW_CHUNKS,
    Accepted,
    AddCredit,
    Body,
    Cancel,
    Chunk,
    ChunkBody,
    Done,
    DoneBody,
    Event,
    Failed,
    FromClient,
    FromControl,
    Generate,
    GenerateBody,
    Header,
    Hello,
    Retire,
    Shutdown,
    Snapshot,
    SnapshotBody,
    Spawn,
    Status,
    Welcome,
)
from dflashd.protocol.paths import Endpoints

H = TypeVar("H", bound=Header)

WAIT_S = 30.0
FOREVER = 10**9

STATS = DoneBody(
    finish_reason="stop",
    engine="dflash",
    model="m",
    digest="d",
    worker_pid=1,
    block_tokens=8,
    cycles=3,
    acceptance_length_tokens=2.5,
    prompt_tokens=4,
    cached_tokens=0,
    generated_tokens=9,
    queued_ms=0.0,
    load_ms=0.0,
    ttft_ms=1.0,
    prefill_ms=1.0,
    decode_ms=2.0,
    memory_bytes=0,
)

SNAPSHOT = SnapshotBody(
    instance="i",
    version="v",
    pid=1,
    uptime_s=1.0,
    state="serving",
    workers=(),
    models=(),
    counters={"dropped": {"epoch": 1}},
)


@contextmanager
def short_directory() -> Generator[Path]:
    """Yield a directory whose socket paths are short enough."""
    path = Path(tempfile.mkdtemp(prefix="dfd", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Running:
    """One generation the scripted daemon is producing."""

    def __init__(self, peer: bytes, header: Generate, total: int) -> None:
        self.peer = peer
        self.id = header.id
        self.model = header.model
        self.total = total
        self.seq = 0
        self.window = SendWindow(header.credit)


class ScriptedDaemon:
    """Binds requests and control in ``runtime_dir``; a context manager."""

    def __init__(self, runtime_dir: Path) -> None:
        self.endpoints = Endpoints(runtime_dir)
        self.received: list[Header] = []
        self.running: dict[bytes, Running] = {}
        self.bodies: dict[bytes, GenerateBody] = {}
        self.sent_chunks = 0
        self.mute = False
        self.window = WINDOW_CHUNKS
        self._changed = threading.Condition()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-daemon")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def expect(self, kind: type[H], count: int = 1) -> list[H]:
        """Wait until ``count`` messages of ``kind`` have arrived, and return them."""

        def arrived() -> list[H]:
            return [header for header in self.received if isinstance(header, kind)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(arrived()) >= count, WAIT_S), (
                f"{len(arrived())} {kind.__name__} of {count} arrived"
            )
        return arrived()

    def do(self, order: Callable[[], None]) -> None:
        """Run ``order`` on the daemon's thread, soon."""
        self._orders.put(order)

    def send(self, peer: bytes, header: Header, body: Body | None = None) -> None:
        """Send on the socket the last message came from; the daemon's thread only."""
        self._socket.send_multipart([peer, *encode(header, body)])

    def send_frames(self, peer: bytes, frames: list[bytes]) -> None:
        self._socket.send_multipart([peer, *frames])

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sockets = {
            self._bind(context, self.endpoints.requests): FromClient,
            self._bind(context, self.endpoints.control): FromControl,
        }
        self._requests = self._socket = next(iter(sockets))
        self._ready.set()
        while not self._stopping:
            while not self._orders.empty():
                self._orders.get()()
            for socket, kinds in sockets.items():
                self._drain(socket, kinds)
            self._produce()
            if not any(run.window.open for run in self.running.values()):
                self._requests.poll(2)
        for socket in sockets:
            socket.close(linger=100)
        context.term()

    @staticmethod
    def _bind(context: zmq.Context[zmq.Socket[bytes]], url: str) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.ROUTER)
        # A ROUTER drops in silence what a full queue refuses; this one may have no such queue.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(url)
        return socket

    def _drain(self, socket: zmq.Socket[bytes], kinds: object) -> None:
        while not self.mute and socket.poll(0):
            peer, *frames = socket.recv_multipart()
            self._socket = socket
            message = decode(frames, kinds)  # pyright: ignore[reportArgumentType]
            self._answer(peer, message)
            with self._changed:
                self.received.append(message.header)
                self._changed.notify_all()

    def _answer(self, peer: bytes, message: Message) -> None:
        match message.header:
            case Hello():
                self.send(peer, Welcome(instance="scripted", version="0", window=self.window))
            case Generate() as header:
                self._start(peer, header, decode_body(GenerateBody, message.body))
            case AddCredit(id=request_id, chunks=chunks):
                if request_id in self.running:
                    self.running[request_id].window.add(chunks)
            case Cancel(id=request_id):
                if self.running.pop(request_id, None) is not None:
                    failed = Failed(code=ErrorCode.cancelled, message="as asked", id=request_id)
                    self.send(peer, failed)
            case Status(id=request_id):
                self.send(peer, Snapshot(id=request_id), SNAPSHOT)
            case Spawn(id=request_id, model=model):
                self._spawn(peer, request_id, model)
            case Retire(id=request_id) | Shutdown(id=request_id):
                self.send(peer, Done(id=request_id))
                self._stopping = isinstance(message.header, Shutdown)
            case _:
                raise AssertionError(message)

    def _spawn(self, peer: bytes, request_id: bytes, model: str) -> None:
        if model == "slow":
            return
        for done in range(3):
            event = Event(id=request_id, name="progress", model=model, done=done, total=3)
            self.send(peer, event)
        self.send(peer, Done(id=request_id))

    def _start(self, peer: bytes, header: Generate, body: GenerateBody) -> None:
        request_id = header.id
        self.bodies[request_id] = body
        if header.model == "unknown":
            error = DflashError(ErrorCode.not_found, "no such model: unknown")
            self.send(peer, Failed.of(error, request_id))
            return
        if header.model == "ignored":
            return
        self.send(peer, Accepted(id=request_id, position=0))
        if header.model == "foreign":
            self.send_frames(peer, [b"NOTOURS\x01", b"", b""])
        elif header.model == "silent":
            pass
        elif header.model == "wrong-kind":
            self.send(peer, Snapshot(id=request_id), SNAPSHOT)
        elif header.model == "bad-body":
            frames = encode(Chunk(id=request_id, seq=0, epoch=1), b"\x81\xa6tokens\xa1x")
            self.send_frames(peer, frames)
        else:
            total = FOREVER if body.prompt == "forever" else int(body.prompt or "3")
            self.running[request_id] = Running(peer, header, total)

    def _produce(self) -> None:
        for run in list(self.running.values()):
            if run.seq == run.total:
                del self.running[run.id]
                self.send_requests(run.peer, Done(id=run.id, epoch=1), STATS)
            elif run.window.take() or run.model == "credit-breaker":
                seq = run.seq + 1 if run.model == "gap" and run.seq == 2 else run.seq
                body = ChunkBody(tokens=(run.seq, run.seq), text=f"{run.seq} ")
                self.send_requests(run.peer, Chunk(id=run.id, seq=seq, epoch=1), body)
                run.seq += 1
                self.sent_chunks += 1

    def send_requests(self, peer: bytes, header: Header, body: Body | None = None) -> None:
        self._requests.send_multipart([peer, *encode(header, body)])
