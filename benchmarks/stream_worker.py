"""A worker that computes nothing and streams as told, at any speed; its own process.

Started by the supervisor it registers like any worker. With a role and a URL as arguments it serves
clients without a supervisor: ``direct`` binds for them, ``proxied`` stands behind a libzmq proxy.

A request's prompt says how: chunks and hertz, 0 for as fast as credit allows. Each chunk's text is
the monotonic time at which it was sent, in nanoseconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

import zmq

from dflashd.protocol.codec import decode, decode_body, encode
from dflashd.protocol.messages import (
    AddCredit,
    Assign,
    Body,
    Cancel,
    Chunk,
    ChunkBody,
    Done,
    DoneBody,
    FromClient,
    Generate,
    GenerateBody,
    Header,
    Load,
    Loaded,
    LoadedBody,
    Ping,
    Pong,
    Register,
    Stop,
    ToWorker,
)

TOKENS = (11, 222, 3333, 44444)
"""Of one chunk: about what a block leaves."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """One request being answered. ``route`` are the frames in front of its messages."""

    id: bytes
    route: list[bytes]
    credit: int
    chunks: int
    interval_s: float
    due_at: float
    seq: int = 0


class StreamWorker:
    """One socket and a loop."""

    def __init__(self, socket: zmq.Socket[bytes], *, supervised: bool, epoch: int = 1) -> None:
        self.socket = socket
        self.supervised = supervised
        self.epoch = epoch
        self.kinds = ToWorker if supervised else FromClient
        self.streams: dict[bytes, Stream] = {}
        self.steps = 0

    def run(self) -> NoReturn:
        """Serve until told to stop or killed."""
        while True:
            self.receive_all()
            for stream in list(self.streams.values()):
                self.advance(stream)

    def receive_all(self) -> None:
        """Take in what is there; wait for it only if nothing can be sent."""
        if not self.socket.poll(self.patience_ms()):
            return
        with contextlib.suppress(zmq.Again):
            for _ in range(64):
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
                route, message = frames[:-3], decode(frames[-3:], self.kinds)
                self.receive(route, message.header, message.body)

    def patience_ms(self) -> int:
        """Until something is due: rounded down, so that the last moment is spent awake."""
        due = [s.due_at for s in self.streams.values() if s.seq < s.credit or s.seq >= s.chunks]
        return max(0, int(1e3 * (min(due) - time.monotonic()))) if due else 1000

    def receive(self, route: list[bytes], header: Header, frame: bytes) -> None:
        """Take in one message."""
        match header:
            case Assign() | Generate():
                prompt = decode_body(GenerateBody, frame).prompt or ""
                chunks, hertz = map(float, prompt.split())
                interval_s = 1 / hertz if hertz else 0.0
                # Streams do not march in step: each begins somewhere within an interval.
                due_at = time.monotonic() + interval_s * header.id[0] / 256
                self.streams[header.id] = Stream(
                    id=header.id,
                    route=route,
                    credit=header.credit,
                    chunks=int(chunks),
                    interval_s=interval_s,
                    due_at=due_at,
                )
            case AddCredit() if header.id in self.streams:
                self.streams[header.id].credit += header.chunks
            case Cancel():
                self.streams.pop(header.id, None)
            case Load():
                body = LoadedBody(
                    digest="none",
                    engine="dflash",
                    block_tokens=4,
                    context_tokens=8192,
                    memory_bytes=1,
                    device="none",
                    dtype="none",
                )
                self.send([], Loaded(epoch=self.epoch, model=header.model), body)
            case Ping():
                self.send(
                    [],
                    Pong(
                        epoch=self.epoch,
                        n=header.n,
                        steps=self.steps,
                        active=len(self.streams),
                        memory_bytes=1,
                    ),
                )
            case Stop():
                os._exit(0)
            case _:
                pass

    def send(self, route: list[bytes], header: Header, body: Body | None = None) -> None:
        """Send one message."""
        self.socket.send_multipart([*route, *encode(header, body)])

    def advance(self, stream: Stream) -> None:
        """Send what is due: one chunk of a paced stream, a few of one that is not."""
        for _ in range(1 if stream.interval_s else 8):
            now = time.monotonic()
            if stream.due_at > now:
                return
            if stream.seq >= stream.chunks:
                del self.streams[stream.id]
                self.send(stream.route, Done(id=stream.id, epoch=self.epoch), statistics(stream))
                return
            if stream.seq >= stream.credit:
                return
            self.steps += 1
            text = str(time.monotonic_ns())
            header = Chunk(id=stream.id, seq=stream.seq, epoch=self.epoch)
            self.send(stream.route, header, ChunkBody(tokens=TOKENS, text=text))
            stream.seq += 1
            stream.due_at += stream.interval_s


def statistics(stream: Stream) -> DoneBody:
    """Made up, but well-formed."""
    return DoneBody(
        finish_reason="length",
        engine="dflash",
        model="m",
        digest="none",
        worker_pid=os.getpid(),
        block_tokens=4,
        cycles=stream.seq,
        acceptance_length_tokens=4.0,
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=4 * stream.seq,
        queued_ms=0.0,
        load_ms=0.0,
        ttft_ms=0.0,
        prefill_ms=0.0,
        decode_ms=0.0,
        memory_bytes=1,
    )


def supervised() -> StreamWorker:
    """A registered worker of the supervisor that started this process."""
    name, epoch = os.environ["DFLASHD_WORKER"], int(os.environ["DFLASHD_EPOCH"])
    socket = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, f"{name}-{epoch}".encode())
    socket.connect(os.environ["DFLASHD_WORKERS"])
    worker = StreamWorker(socket, supervised=True, epoch=epoch)
    secret = bytes.fromhex(os.environ["DFLASHD_SECRET"])
    worker.send([], Register(worker=name, epoch=epoch, pid=os.getpid(), secret=secret))
    return worker


def unsupervised(role: str, url: str) -> StreamWorker:
    """A worker that clients reach directly, or through a proxy."""
    socket = zmq.Context().socket(zmq.ROUTER if role == "direct" else zmq.DEALER)
    if role == "direct":
        socket.bind(url)
    else:
        socket.connect(url)
    return StreamWorker(socket, supervised=False)


def proxy(front: str, back: str) -> None:
    """The proxy of libzmq, and nothing else."""
    context = zmq.Context()
    clients, workers = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    clients.bind(front)
    workers.bind(back)
    zmq.proxy(clients, workers)


def main(arguments: list[str]) -> None:
    """Be what the arguments say."""
    if arguments[:1] == ["proxy"]:
        proxy(*arguments[1:])
        return
    worker = unsupervised(*arguments) if arguments else supervised()
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1:])
