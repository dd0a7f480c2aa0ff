"""What the HTTP gateway adds to each streamed chunk, against the ZeroMQ client in the same run.

A worker that computes nothing writes the moment of sending into each chunk, so that each arrival
gives a delay. Both ways take turns; what is left is the difference of their quantiles.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from dflashd.protocol import Client

from .stream_routes import supervised

ROUNDS = 6
CHUNKS = 150
START_S = 30.0
MODEL = "m0"
PROMPT = f"{CHUNKS} 100"
"""What the worker is to do: so many chunks, at so many hertz (about a fast model's cycles)."""


def figures() -> dict[str, float]:
    """Delays from the worker's send to the reader, in milliseconds."""
    direct: list[float] = []
    http: list[float] = []
    with stack() as (client, port):
        _ = list(over_zeromq(client))  # loads the model; and the first of anything is slow
        _ = list(over_http(port))
        for _ in range(ROUNDS):
            direct += over_zeromq(client)
            http += over_http(port)
    base, whole = quantiles(direct), quantiles(http)
    return {
        "added_ms_per_chunk_p50": whole[0] - base[0],
        "added_ms_per_chunk_p99": whole[1] - base[1],
        "zeromq_ms_per_chunk_p50": base[0],
        "zeromq_ms_per_chunk_p99": base[1],
        "http_ms_per_chunk_p50": whole[0],
        "http_ms_per_chunk_p99": whole[1],
    }


def quantiles(delays_ms: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    return statistics.median(delays_ms), statistics.quantiles(delays_ms, n=100)[98]


def over_zeromq(client: Client) -> Iterator[float]:
    """One stream through the client library."""
    for chunk in client.generate(MODEL, PROMPT):
        now_ns = time.monotonic_ns()
        yield (now_ns - int(chunk.text)) / 1e6


def over_http(port: int) -> Iterator[float]:
    """One stream of server-sent events, read as they come."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": MODEL, "prompt": PROMPT, "stream": True}
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    for line in connection.getresponse():
        now_ns = time.monotonic_ns()
        if line.startswith(b"data: {"):
            text = json.loads(line[6:])["choices"][0]["text"]
            if text:
                yield (now_ns - int(text)) / 1e6
    connection.close()


@contextmanager
def stack() -> Generator[tuple[Client, int]]:
    """A daemon with a streaming worker and a gateway; a client of it, and the gateway's port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="dfd", dir="/tmp") as name:
        folder = Path(name)
        with (
            supervised(folder, sections=f"[http]\nport = {port}"),
            Client(folder / "run", timeout_s=START_S) as client,
        ):
            wait_for_gateway(port)
            yield client, port


def wait_for_gateway(port: int) -> None:
    """Return when it listens. Raises TimeoutError."""
    end = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > end:
            raise TimeoutError("the gateway does not listen")
        time.sleep(0.05)
