"""A worker that speaks the real protocol, computes nothing, and misbehaves as it is told.

``DFLASHD_FAKE`` holds JSON: {worker or model name: {flag: value}}; see :class:`Flags`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
import zmq

from dflashd.protocol import lifeline
from dflashd.protocol.codec import decode, decode_body, encode
from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    AddCredit,
    Assign,
    CacheBody,
    CacheState,
    Cancel,
    Chunk,
    ChunkBody,
    ClearCache,
    Done,
    DoneBody,
    Failed,
    GenerateBody,
    Header,
    Load,
    Loaded,
    LoadedBody,
    LoadFailed,
    Logprobs,
    Ping,
    Pong,
    Progress,
    ReadCache,
    Register,
    Stop,
    TokenLogprob,
    Tool,
    ToolCall,
    ToWorker,
    Unload,
    Unloaded,
)


class Flags(msgspec.Struct, forbid_unknown_fields=True):
    """How to behave."""

    exit_at_start: int | None = None
    exit_at_load: int | None = None
    last_words: str = ""
    register: bool = True
    load_s: float = 0.0
    load_progress: bool = True
    load_error: tuple[str, str] | None = None
    chunks: int = 5
    chunk_s: float = 0.01
    text: str = "word "
    ignore_cancel: bool = False
    ignore_stop: bool = False
    ignore_term: bool = False
    deaf: bool = False
    stuck_after: int | None = None
    skip_seq: int | None = None
    flood: bool = False
    echo: bool = False
    reasoning: str = ""
    tool_call: bool = False
    fail_after: int | None = None
    finish_reason: Literal["stop", "length"] = "length"
    stop_string: str | None = None
    count_cancels: str = ""
    grandchild: bool = False
    fault: str = ""
    fault_at: str = ""
    fault_once: bool = True
    real: bool = False
    failure: tuple[str, str] | None = None
    log: str = ""
    log_flood_bytes: int = 0
    memory_bytes: int = 1000
    shared_bytes: int = 0
    ignore_unload: bool = False
    conflicts_with: str = ""


def commit(fault: str) -> None:
    """Do to this process what a crash, a hang or an operator would."""
    match fault:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hung":
            while True:
                time.sleep(1000)
        case "hung with the GIL":
            ctypes.PyDLL(None).sleep(1000)
        case "aborted":
            os.abort()
        case "left":
            os._exit(0)
        case "unusable":
            os._exit(78)
        case _:
            raise ImportError(f"no module named {fault}")


@dataclass(slots=True)
class Job:
    """One request being answered."""

    id: bytes
    model: str
    credit: int
    chunks: int
    next_at: float
    text: str
    seq: int = 0
    cancelled: bool = False
    queued_ms: int = 0
    load_ms: int = 0
    logprobs: int | None = None
    tools: tuple[Tool, ...] = ()
    block_tokens: int = 8
    """1: plain decoding."""


class FakeWorker:
    """One process: a DEALER and a loop."""

    def __init__(self, flags: Flags, table: dict[str, Flags]) -> None:
        self.flags = flags
        self.table = table
        self.name = os.environ["DFLASHD_WORKER"]
        self.epoch = int(os.environ["DFLASHD_EPOCH"])
        self.jobs: dict[bytes, Job] = {}
        self.steps = 0
        self.cached = 3
        self.loads: list[str] = []
        self.held: dict[str, Flags] = {}
        self.load_began = time.monotonic()
        self.socket = zmq.Context().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{self.name}-{self.epoch}".encode())
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.connect(os.environ["DFLASHD_WORKERS"])
        signal.signal(signal.SIGUSR1, lambda *_: self.at("idle"))

    def at(self, stage: str, model: str = "") -> None:
        """Misbehave if this is the stage for it; by default in one incarnation only."""
        flags = self.flags_of(model)
        if flags.fault_at != stage:
            return
        if flags.fault_once:
            marker = f"{os.environ['DFLASHD_FAKE_DIR']}/{model or self.name}.faulted"
            with contextlib.suppress(FileExistsError):
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                commit(flags.fault)
        else:
            commit(flags.fault)

    def run(self) -> NoReturn:
        """Serve until told otherwise."""
        secret = bytes.fromhex(os.environ["DFLASHD_SECRET"])
        if self.flags.register:
            self.send(Register(worker=self.name, epoch=self.epoch, pid=os.getpid(), secret=secret))
        while True:
            if self.socket.poll(2):
                message = decode(self.socket.recv_multipart(), ToWorker)
                self.receive(message.header, message.body)
            if self.loads:
                self.load(self.loads[0])
            for job in list(self.jobs.values()):
                self.step(job)

    def send(self, header: Header, body: Any = None) -> None:
        """Send one message."""
        self.socket.send_multipart(encode(header, body))

    def receive(self, header: Header, frame: bytes) -> None:
        """Take in one message."""
        match header:
            case Load():
                status = self.flags_of(header.model).exit_at_load
                if status is not None:
                    self.leave(status)
                self.at("loading", header.model)
                self.load_began = time.monotonic()
                self.loads.append(header.model)
            case Unload() if not self.flags_of(header.model).ignore_unload:
                self.unload(header.model)
            case Assign():
                self.at("prefill", header.model)
                body = decode_body(GenerateBody, frame)
                flags = self.flags_of(header.model)
                said = "|".join(f"{m.role}={m.content}" for m in body.messages or ())
                self.jobs[header.id] = Job(
                    header.id,
                    header.model,
                    header.credit,
                    0 if body.count_only else flags.chunks,
                    time.monotonic() + flags.chunk_s,
                    text=said if flags.echo else flags.text,
                    queued_ms=header.queued_ms,
                    load_ms=header.load_ms,
                    logprobs=body.logprobs,
                    tools=body.tools,
                    block_tokens=1 if body.speculation == "off" else body.block_tokens or 8,
                )
            case AddCredit() if header.id in self.jobs:
                self.jobs[header.id].credit += header.chunks
            case Cancel() if header.id in self.jobs and not self.flags.ignore_cancel:
                self.jobs[header.id].cancelled = True
            case ReadCache() | ClearCache() if not self.flags.deaf:
                self.cached = 0 if isinstance(header, ClearCache) else self.cached
                body = CacheBody(state="open", ram_entries=self.cached, hits={"l1_prefix": 2})
                self.send(CacheState(id=header.id, epoch=self.epoch), body)
            case Ping() if not self.flags.deaf:
                pong = Pong(
                    epoch=self.epoch,
                    n=header.n,
                    steps=self.steps,
                    active=len(self.jobs),
                    memory_bytes=self.memory_bytes,
                )
                self.send(pong)
            case Stop() if not self.flags.ignore_stop:
                self.leave(0)
            case _:
                pass

    def flags_of(self, model: str) -> Flags:
        """How to treat one model."""
        return self.table.get(model, self.flags)

    @property
    def memory_bytes(self) -> int:
        """What the models held take, shared weights once."""
        return sum(f.memory_bytes - f.shared_bytes for f in self.held.values()) or 1000

    def unload(self, model: str) -> None:
        """Let a model go, or the load of it."""
        if model in self.loads:
            self.loads.remove(model)
            self.fail_load(model, ErrorCode.cancelled, "the model was unloaded")
        for job in [job for job in self.jobs.values() if job.model == model]:
            del self.jobs[job.id]
            failed = Failed(id=job.id, epoch=self.epoch, code=ErrorCode.cancelled, message="gone")
            self.send(failed)
        self.held.pop(model, None)
        self.send(Unloaded(epoch=self.epoch, model=model))

    def fail_load(self, model: str, code: ErrorCode, message: str) -> None:
        """Say that a model cannot be loaded."""
        self.send(LoadFailed(epoch=self.epoch, model=model, code=code, message=message))

    def load(self, model: str) -> None:
        """Make progress, and end it."""
        flags, loaded_s = self.flags_of(model), time.monotonic() - self.load_began
        if flags.load_progress:
            total = int(flags.load_s * 1000)
            self.send(
                Progress(
                    epoch=self.epoch,
                    model=model,
                    stage="weights",
                    done=min(int(loaded_s * 1000), total),
                    total=total,
                    unit="bytes",
                )
            )
        if loaded_s < flags.load_s:
            return
        self.loads.remove(model)
        if flags.load_error is not None:
            code, message = flags.load_error
            self.fail_load(model, ErrorCode(code), message)
            return
        if flags.conflicts_with in self.held:
            message = f"Attention is claimed by {flags.conflicts_with}"
            self.fail_load(model, ErrorCode.hook_conflict, message)
            return
        self.held[model] = flags
        body = LoadedBody(
            digest="fake",
            engine="dflash",
            block_tokens=8,
            block_tokens_limit=16,
            context_tokens=1000,
            memory_bytes=flags.memory_bytes,
            shared_bytes=flags.shared_bytes,
            device="none",
            dtype="none",
        )
        self.send(Loaded(epoch=self.epoch, model=model), body)

    def step(self, job: Job) -> None:
        """Do what is due for one job."""
        if job.cancelled:
            if self.flags.count_cancels:
                with Path(self.flags.count_cancels).open("a") as file:
                    file.write(f"{job.seq}\n")
            del self.jobs[job.id]
            self.send(
                Failed(id=job.id, epoch=self.epoch, code=ErrorCode.cancelled, message="cancelled")
            )
            return
        if job.seq == 3:
            self.at("decode", job.model)
        failure = self.flags_of(job.model).failure
        if failure is not None and job.seq == 3:
            del self.jobs[job.id]
            code, message = failure
            failed = Failed(id=job.id, epoch=self.epoch, code=ErrorCode(code), message=message)
            self.send(failed)
            return
        stuck = self.flags.stuck_after is not None and job.seq >= self.flags.stuck_after
        if stuck or time.monotonic() < job.next_at:
            return
        if job.seq == self.flags.fail_after:
            del self.jobs[job.id]
            lost = Failed(
                id=job.id, epoch=self.epoch, code=ErrorCode.internal, message="it broke off"
            )
            self.send(lost)
        elif job.seq >= job.chunks:
            del self.jobs[job.id]
            self.send(Done(id=job.id, epoch=self.epoch), self.statistics(job))
        elif job.seq < job.credit or self.flags.flood:
            self.steps += 1
            seq = job.seq + (job.seq == self.flags.skip_seq)
            body = self.chunk(job)
            self.send(Chunk(id=job.id, seq=seq, epoch=self.epoch, tokens=1), body)
            job.seq += 1
            job.next_at = time.monotonic() + self.flags_of(job.model).chunk_s

    def chunk(self, job: Job) -> ChunkBody:
        """What a step says: first a thought, last a call, where it is told so; else the text."""
        chances: tuple[Logprobs, ...] = ()
        if job.logprobs is not None:
            other = TokenLogprob(token=9, written=b"no", logprob=-2.0)
            word = Logprobs(
                token=job.seq, written=job.text.encode(), logprob=-0.5, top=(other,) * job.logprobs
            )
            chances = (word,)
        if self.flags.reasoning and job.seq == 0:
            return ChunkBody(tokens=(0,), text="", reasoning=self.flags.reasoning)
        if job.tools and job.seq == job.chunks - 1 and self.flags.tool_call:
            call = ToolCall(id="call_1", name=job.tools[0].name, arguments='{"at": "Ulm"}')
            return ChunkBody(tokens=(job.seq,), text="", tool_calls=(call,))
        return ChunkBody(tokens=(job.seq,), text=job.text, logprobs=chances)

    def statistics(self, job: Job) -> DoneBody:
        """Made up, but well-formed: blocks of four are the fastest."""
        plain = job.block_tokens == 1
        accepted = min(job.block_tokens, 4)
        cycle_ms = 10 if plain else 10 + job.block_tokens
        return DoneBody(
            finish_reason=self.flags.finish_reason,
            stop_string=self.flags.stop_string,
            engine="plain" if plain else "dflash",
            engine_reason="the request asked for speculation off" if plain else "",
            model=job.model,
            digest="fake",
            worker_pid=os.getpid(),
            block_tokens=job.block_tokens,
            cycles=job.seq,
            acceptance_length_tokens=accepted,
            prompt_tokens=7,
            cached_tokens=3,
            generated_tokens=job.seq,
            reasoning_tokens=min(job.seq, 2),
            queued_ms=job.queued_ms,
            load_ms=job.load_ms,
            ttft_ms=1.0,
            prefill_ms=1.0,
            decode_ms=job.seq / accepted * cycle_ms,
            memory_bytes=1000,
        )

    def leave(self, status: int) -> NoReturn:
        """Exit at once, as a worker may."""
        sys.stderr.write(self.flags.last_words)
        sys.stderr.flush()
        self.socket.close()
        self.socket.context.term()
        os._exit(status)


def flood_log(total_bytes: int) -> None:
    """Write numbered lines to stderr as fast as it takes them, then one last line."""
    number = 0
    while total_bytes > 0:
        block = b"".join(b"flood %09d %s\n" % (n, b"x" * 80) for n in range(number, number + 100))
        total_bytes -= os.write(2, block)
        number += 100
    os.write(2, b"flood ends\n")


def main() -> None:
    """Behave as told."""
    table = msgspec.json.decode(os.environ.get("DFLASHD_FAKE", "{}"), type=dict[str, Flags])
    flags = table.get(os.environ["DFLASHD_WORKER"], Flags())
    if flags.real:
        os.execv(sys.executable, (sys.executable, "-P", "-m", "dflashd.worker"))
    lifeline.hold(int(os.environ["DFLASHD_SUPERVISOR_PID"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore = signal.SIG_IGN if flags.ignore_term else signal.SIG_DFL
    signal.signal(signal.SIGTERM, ignore)
    if flags.grandchild:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    if flags.exit_at_start is not None:
        sys.stderr.write(flags.last_words)
        sys.exit(flags.exit_at_start)
    os.write(2, flags.log.encode())
    if flags.log_flood_bytes:
        threading.Thread(target=flood_log, args=(flags.log_flood_bytes,), daemon=True).start()
    worker = FakeWorker(flags, table)
    worker.at("start")
    worker.run()


if __name__ == "__main__":
    main()
