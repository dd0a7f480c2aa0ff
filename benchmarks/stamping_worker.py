"""A worker that computes nothing: each chunk's text is the moment it was sent, in nanoseconds.

``python -m benchmarks.stamping_worker`` is the worker; with a configuration file as its argument it
is a daemon whose workers are such. CLOCK_MONOTONIC is one clock for all processes of a machine.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import zmq

from dflashd.protocol import lifeline
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

PERIOD_S = 0.01
"""Between two chunks of a request: about what a fast model takes for a cycle."""


@dataclass(slots=True)
class Job:
    """One request."""

    left: int
    credit: int
    due_s: float
    seq: int = 0


class StampingWorker:
    """One process."""

    def __init__(self) -> None:
        self._name, self._epoch = os.environ["DFLASHD_WORKER"], int(os.environ["DFLASHD_EPOCH"])
        self._jobs: dict[bytes, Job] = {}
        self._socket = zmq.Context().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{self._name}-{self._epoch}".encode())
        self._socket.connect(os.environ["DFLASHD_WORKERS"])

    def run(self) -> None:
        """Serve until stopped."""
        secret = bytes.fromhex(os.environ["DFLASHD_SECRET"])
        self._send(Register(worker=self._name, epoch=self._epoch, pid=os.getpid(), secret=secret))
        while True:
            due_s = min((job.due_s for job in self._jobs.values()), default=time.monotonic() + 1)
            if self._socket.poll(max(0, round(1e3 * (due_s - time.monotonic())))):
                message = decode(self._socket.recv_multipart(), ToWorker)
                if isinstance(message.header, Stop):
                    return
                self._receive(message.header, message.body)
            for id, job in list(self._jobs.items()):
                self._step(id, job)

    def _send(self, header: Header, body: Body | None = None) -> None:
        self._socket.send_multipart(encode(header, body))

    def _receive(self, header: Header, body: bytes) -> None:
        match header:
            case Load(model=model):
                self._send(Loaded(epoch=self._epoch, model=model), LOADED)
            case Assign(id=id, credit=credit):
                chunks = decode_body(GenerateBody, body).max_tokens or 1
                self._jobs[id] = Job(chunks, credit, time.monotonic())
            case AddCredit(id=id, chunks=chunks) if id in self._jobs:
                self._jobs[id].credit += chunks
            case Cancel(id=id):
                _ = self._jobs.pop(id, None)
            case Ping(n=n):
                self._send(Pong(epoch=self._epoch, n=n, steps=n, active=0, memory_bytes=0))
            case _:
                pass

    def _step(self, id: bytes, job: Job) -> None:
        if time.monotonic() < job.due_s or (job.left and not job.credit):
            return
        if not job.left:
            del self._jobs[id]
            self._send(Done(id=id, epoch=self._epoch), _done(self._name, job.seq))
            return
        stamp = f"{time.monotonic_ns()} "
        header = Chunk(id=id, seq=job.seq, epoch=self._epoch)
        self._send(header, ChunkBody(tokens=(1,), text=stamp))
        job.left, job.credit, job.seq = job.left - 1, job.credit - 1, job.seq + 1
        job.due_s += PERIOD_S


LOADED = LoadedBody(
    digest="none",
    engine="plain",
    block_tokens=1,
    context_tokens=2**20,
    memory_bytes=0,
    device="none",
    dtype="none",
)


def _done(model: str, chunks: int) -> DoneBody:
    return DoneBody(
        finish_reason="length",
        engine="plain",
        model=model,
        digest="none",
        worker_pid=os.getpid(),
        block_tokens=1,
        cycles=chunks,
        acceptance_length_tokens=1,
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=chunks,
        queued_ms=0,
        load_ms=0,
        ttft_ms=0,
        prefill_ms=0,
        decode_ms=0,
        memory_bytes=0,
    )


def serve(config: Path) -> int:
    """A daemon with such workers; the exit status."""
    from dflashd.supervisor.serve import run

    return run(config, worker_command=(sys.executable, "-m", "benchmarks.stamping_worker"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(serve(Path(sys.argv[1])))
    lifeline.hold(int(os.environ["DFLASHD_SUPERVISOR_PID"]))
    StampingWorker().run()
