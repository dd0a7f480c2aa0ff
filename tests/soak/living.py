"""A soak from start to end, and what it found."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dflashd.protocol import DflashError, ErrorCode, SnapshotBody

from ..process.daemon_process import DaemonProcess, wait_for
from . import fleet
from .census import Census, resident_bytes, taken
from .chaos import Chaos
from .traffic import Traffic

CLIENTS = 8
LAST_S = 120.0
"""Every request begun must have ended by then, and every process that was told to."""

FLAT_BYTES = 8 * 2**20
"""The supervisor may hold so much more in the last fifth than it did in the second."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a soak saw; ``problems`` is empty when all is well."""

    seconds: float = 0.0
    asked: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    commands: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    resident_bytes: list[int] = field(default_factory=list[int])
    problems: list[str] = field(default_factory=list[str])


def live(for_s: float, *, seed: int, real: bool, tell: Callable[[str], None]) -> Findings:
    """Let a daemon live through ``for_s`` seconds of traffic and faults."""
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="dfd", dir="/tmp") as folder:
        daemon = fleet.start(Path(folder), real=real)
        try:
            soak(daemon, for_s, seed, findings, tell)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest is told with it
            findings.problems.append(f"{type(error).__name__}: {error}")
        finally:
            log = daemon.close()
    findings.problems += [line for line in log.splitlines() if "internal_error" in line]
    return findings


def soak(
    daemon: DaemonProcess,
    for_s: float,
    seed: int,
    findings: Findings,
    tell: Callable[[str], None],
) -> None:
    """Count, disturb, let come to rest, count again."""
    with daemon.client() as client:
        status = client.status()
        client.spawn("fast")
        client.retire("fast")
    models = [model.name for model in status.models]
    before = taken(daemon, status.instance)
    crowd = [Traffic(daemon, models, seed + number) for number in range(CLIENTS)]
    chaos = Chaos(daemon, models, seed)
    began_s = time.monotonic()
    for thread in (*crowd, chaos):
        thread.start()
    while (elapsed_s := time.monotonic() - began_s) < for_s:
        time.sleep(min(1.0, for_s - elapsed_s))
        findings.resident_bytes.append(resident_bytes(daemon))
        if len(findings.resident_bytes) % 60 == 0:
            asked = sum(one.asked for one in crowd)
            tell(f"{elapsed_s:.0f} s, {asked} requests, {sum(chaos.faults.values())} faults")
    for thread in (chaos, *crowd):
        thread.stop()
    for thread in (chaos, *crowd):
        thread.join(LAST_S)
        findings.problems += thread.problems
        if thread.is_alive():
            findings.problems.append(f"{thread.name} waits for an answer that does not come")
    findings.seconds = time.monotonic() - began_s
    findings.faults = chaos.faults
    for one in crowd:
        findings.asked += one.asked
        findings.ends += one.ends
        findings.commands += one.commands
    findings.problems += unaccounted(daemon, models, findings)
    findings.problems += left_behind(daemon, before, status.instance)
    findings.problems += grown(findings.resident_bytes)


def unaccounted(daemon: DaemonProcess, models: list[str], findings: Findings) -> list[str]:
    """Requests that did not end exactly once, as their clients saw it and as the daemon did."""
    problems: list[str] = []
    if sum(findings.ends.values()) != findings.asked:
        problems.append(f"{findings.asked} requests, {sum(findings.ends.values())} ends")
    with daemon.client() as client:
        for model in models:
            try:
                client.retire(model, now=True)
            except DflashError as error:
                problems.append(f"{model} cannot be retired: {error}")
        wait_for("nothing runs or waits", lambda: idle(client.status()), LAST_S)
        counters = client.status().counters
    codes = sum(counters.get(str(code), 0) for code in ErrorCode)
    ended = counters.get("completed", 0) + codes + counters.get("requests_orphaned", 0)
    if ended != counters["generates"]:
        problems.append(f"{counters['generates']} requests to the daemon, {ended} ends")
    return problems


def idle(status: SnapshotBody) -> bool:
    """Whether nothing runs or waits."""
    return not any(model.active or model.queued for model in status.models)


def left_behind(daemon: DaemonProcess, before: Census, instance: str) -> list[str]:
    """What is there after the soak and was not before."""
    growth: dict[str, str] = {}

    def back() -> bool:
        nonlocal growth
        growth = taken(daemon, instance).growth(before)
        return not growth

    try:
        wait_for("everything is back at its start", back, 30.0)
    except AssertionError:
        return [f"{name}: {what}" for name, what in growth.items()]
    return []


def grown(samples: list[int]) -> list[str]:
    """Whether the supervisor's memory rose, once everything had happened a first time."""
    fifth = len(samples) // 5
    if fifth < 2:
        return []
    early, late = max(samples[fifth : 2 * fifth]), max(samples[-fifth:])
    if late - early <= FLAT_BYTES:
        return []
    return [f"the supervisor grew from {early / 2**20:.1f} to {late / 2**20:.1f} MiB"]
