"""What the supervisor costs between clients and workers, beside libzmq's own proxy."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import psutil

from .stream_client import IdleClients, Streamed, stream
from .stream_routes import direct, proxied, supervised

ROUNDS = 3
BURST_STREAMS = 16
BURST_CHUNKS = 1500
PACED = {1: (600, 200.0), 16: (150, 50.0), 256: (30, 10.0)}
"""Streams: chunks of each and hertz, for about three seconds."""

WORKERS = (1, 10, 100)
IDLE_CLIENTS = 1000
LOOK_S = 5.0


def figures() -> dict[str, float]:
    """Throughput, latency beyond a direct connection's, and what an idle supervisor takes."""
    with tempfile.TemporaryDirectory(prefix="dfb", dir="/tmp") as folder:  # short socket paths
        return _streaming(Path(folder)) | _idle(Path(folder))


def _streaming(folder: Path) -> dict[str, float]:
    bursts: dict[str, list[float]] = {"direct": [], "proxy": [], "supervisor": []}
    paced: dict[tuple[str, int], list[float]] = {}
    busy_us: list[float] = []
    with _routes(folder) as (urls, pid):
        for _ in range(ROUNDS):  # in turn, so that a slow moment of the machine meets all
            for name, url in urls.items():
                before_s = _cpu_s(pid)
                run = stream(url, streams=BURST_STREAMS, chunks=BURST_CHUNKS, hertz=0)
                bursts[name].append(run.per_s)
                if name == "supervisor":
                    busy_us.append(1e6 * (_cpu_s(pid) - before_s) / len(run.latencies_s))
            for streams, (chunks, hertz) in PACED.items():
                for name, url in urls.items():
                    one = stream(url, streams=streams, chunks=chunks, hertz=hertz)
                    paced.setdefault((name, streams), []).extend(_settled(one, streams))
    rate = {name: statistics.median(rates) for name, rates in bursts.items()}
    result = {
        "messages_per_s": rate["supervisor"],
        "libzmq_proxy_messages_per_s": rate["proxy"],
        "direct_messages_per_s": rate["direct"],
        "over_libzmq_proxy_ratio": rate["supervisor"] / rate["proxy"],
        "supervisor_cpu_us_per_message": statistics.median(busy_us),
    }
    for streams in PACED:
        for name, prefix in (("supervisor", ""), ("proxy", "libzmq_proxy_")):
            for percent in (50, 99):
                added_s = _quantile(paced[name, streams], percent) - _quantile(
                    paced["direct", streams], percent
                )
                result[f"{prefix}added_ms_p{percent}_{streams}"] = 1e3 * added_s
    for percent in (50, 99):  # the middle load under the plain name
        result[f"added_ms_p{percent}"] = result[f"added_ms_p{percent}_16"]
    return result


@contextlib.contextmanager
def _routes(folder: Path) -> Generator[tuple[dict[str, str], int]]:
    with direct(folder) as a, proxied(folder) as b, supervised(folder) as (c, pid):
        yield {"direct": a, "proxy": b, "supervisor": c}, pid


def _idle(folder: Path) -> dict[str, float]:
    """Memory and CPU of a supervisor to whom nothing is said but pings."""
    result: dict[str, float] = {}
    for workers in WORKERS:
        home = folder / str(workers)
        home.mkdir()
        with supervised(home, workers) as (url, pid):
            result |= _look(pid, f"workers_{workers}")
            if workers == WORKERS[0]:
                clients = IdleClients(url, IDLE_CLIENTS)
                result |= _look(pid, f"clients_{IDLE_CLIENTS}")
                clients.close()
    return result


def _look(pid: int, name: str) -> dict[str, float]:
    before_s, began = _cpu_s(pid), time.monotonic()
    time.sleep(LOOK_S)
    used = (_cpu_s(pid) - before_s) / (time.monotonic() - began)
    memory = psutil.Process(pid).memory_info().rss
    return {f"supervisor_mb_{name}": memory / 1e6, f"supervisor_cpu_ratio_{name}": used}


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _settled(run: Streamed, streams: int) -> list[float]:
    """Latencies without those of the beginning, when all requests arrive at once."""
    return run.latencies_s[min(len(run.latencies_s) // 10, 4 * streams) :]


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
