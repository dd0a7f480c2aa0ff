"""A client as thin as one can be: sockets, credit, and the time each chunk took."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import msgspec
import zmq

from dflashd.protocol.codec import decode, encode
from dflashd.protocol.messages import (
    WINDOW_CHUNKS,
    AddCredit,
    Chunk,
    ChunkBody,
    Done,
    Failed,
    Generate,
    GenerateBody,
    Hello,
    ToClient,
)

MOST_SOCKETS = 16
"""More streams than this share sockets: a client program has several requests, too."""

SILENCE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What came of a run: latencies in seconds in order of arrival, and the time it all took."""

    latencies_s: list[float]
    seconds: float

    @property
    def per_s(self) -> float:
        """Chunks a second."""
        return len(self.latencies_s) / self.seconds


def stream(url: str, *, streams: int, chunks: int, hertz: float) -> Streamed:
    """Run ``streams`` requests side by side, each of ``chunks`` at ``hertz`` (0: unbounded)."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(min(streams, MOST_SOCKETS))]
    poller = zmq.Poller()
    for socket in sockets:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(url)
        poller.register(socket, zmq.POLLIN)
    body = GenerateBody(prompt=f"{chunks} {hertz}")
    for n in range(streams):
        request = Generate(id=os.urandom(16), model="m0")
        sockets[n % len(sockets)].send_multipart(encode(request, body))
    try:
        return _receive(poller, streams)
    finally:
        for socket in sockets:
            socket.close()
        context.term()


def _receive(poller: zmq.Poller, streams: int) -> Streamed:
    began, latencies = 0.0, list[float]()
    read_body = msgspec.msgpack.Decoder(ChunkBody).decode
    while streams:
        ready = poller.poll(SILENCE_MS)
        if not ready:
            raise TimeoutError(f"nothing came for {SILENCE_MS} ms")
        for socket, _ in ready:
            message = decode(socket.recv_multipart(), ToClient)
            match message.header:
                case Chunk(id=id, seq=seq):
                    arrived = time.monotonic_ns()
                    began = began or arrived * 1e-9
                    latencies.append((arrived - int(read_body(message.body).text)) * 1e-9)
                    if seq % (WINDOW_CHUNKS // 2) == WINDOW_CHUNKS // 2 - 1:
                        credit = AddCredit(id=id, chunks=WINDOW_CHUNKS // 2)
                        socket.send_multipart(encode(credit))
                case Done():
                    streams -= 1
                case Failed() as failed:
                    raise failed.error()
                case _:
                    pass
    return Streamed(latencies_s=latencies, seconds=time.monotonic() - began)


class IdleClients:
    """Connections that say hello and then nothing."""

    def __init__(self, url: str, count: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, count + 16)
        self._sockets = [self._context.socket(zmq.DEALER) for _ in range(count)]
        for socket in self._sockets:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(url)
            socket.send_multipart(encode(Hello(client="idle")))
        for socket in self._sockets:
            if not socket.poll(SILENCE_MS):
                raise TimeoutError("the daemon did not welcome all clients")
            socket.recv_multipart()

    def close(self) -> None:
        """Hang up."""
        for socket in self._sockets:
            socket.close()
        self._context.term()
