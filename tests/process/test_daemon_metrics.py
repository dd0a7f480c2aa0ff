"""Metrics: what is counted is what happened, and asking for it changes nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from dflashd.protocol import DflashError
from dflashd.protocol.messages import MetricFamily, MetricSample, MetricsBody

from .daemon_process import DaemonProcess, wait_for
from .test_cli_commands import ctl

MakeDaemon = Callable[..., DaemonProcess]


def family(body: MetricsBody, name: str) -> MetricFamily:
    return next(family for family in body.families if family.name == name)


def sample(body: MetricsBody, name: str, **labels: str) -> MetricSample:
    return next(s for s in family(body, name).samples if s.labels == labels)


def value(body: MetricsBody, name: str, **labels: str) -> float:
    return next((s.value for s in family(body, name).samples if s.labels == labels), 0)


def test_requests_are_counted_by_model_and_end(make_daemon: MakeDaemon) -> None:
    """Every request is in exactly one count, every chunk and token in its model's."""
    daemon = make_daemon({"a": {"chunks": 5}, "b": {"chunks": 1000}})
    with daemon.client() as client:
        for _ in range(3):
            client.generate("a", "x").wait()
        running = client.generate("b", "x")
        chunks = iter(running)
        next(chunks)
        with pytest.raises(DflashError):
            client.generate("c", "x").wait()
        running.cancel()
        body = client.metrics()
        ends = {
            tuple(s.labels.values()): s.value
            for s in family(body, "dflashd_requests_total").samples
        }
        assert ends == {("a", "done"): 3, ("b", "cancelled"): 1}
        assert value(body, "dflashd_refused_total", model="", code="not_found") == 1
        assert value(body, "dflashd_cancels_total", model="b") == 1
        assert value(body, "dflashd_chunks_total", model="a") == 15
        assert value(body, "dflashd_tokens_total", model="a") == 15
        assert value(body, "dflashd_loads_total", model="a") == 1
        assert value(body, "dflashd_events_total") == client.events(last=1).__next__().serial


def test_durations_fall_into_their_buckets(make_daemon: MakeDaemon) -> None:
    """Queue wait, time to first token and the time between chunks are counted once each."""
    daemon = make_daemon({"a": {"load_s": 0.3, "chunks": 4, "chunk_s": 0.02}})
    with daemon.client() as client:
        for _ in range(2):
            client.generate("a", "x").wait()
        body = client.metrics()
    for name, count, least_s in (
        ("queue_wait", 2, 0.3),
        ("time_to_first_token", 2, 0.34),
        ("inter_chunk", 6, 0.0),  # the first may have been handled as late as the last
    ):
        bounds = family(body, f"dflashd_{name}_seconds").bounds
        found = sample(body, f"dflashd_{name}_seconds", model="a")
        assert len(found.counts) == len(bounds) + 1
        assert sum(found.counts) == count
        assert found.value > least_s * 0.99
    waits = sample(body, "dflashd_queue_wait_seconds", model="a").counts
    slow = next(
        n
        for n, bound in enumerate(family(body, "dflashd_queue_wait_seconds").bounds)
        if bound >= 0.3
    )
    assert sum(waits[slow:]) == 1
    assert sum(sample(body, "dflashd_loop_lag_seconds").counts) > 0


def test_failures_restarts_and_drains_are_counted_by_cause(make_daemon: MakeDaemon) -> None:
    """A killed worker counts as a restart of that cause, a failed load and a drain as theirs."""
    flags = {"a": {"chunks": 1000}, "b": {"load_error": ["load_failed", "no file"]}}
    daemon = make_daemon(flags, backoff_first_s=0.01)
    with daemon.client() as client:
        client.spawn("a")
        os.kill(client.status().workers[0].pid or 0, signal.SIGKILL)
        wait_for("the worker is gone", lambda: client.status().workers[0].pid is None)
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        del chunks
        client.retire("a")
        with pytest.raises(DflashError):
            client.spawn("b")
        body = client.metrics()
        events = list(client.events())
    assert value(body, "dflashd_restarts_total", worker="a", cause="killed") == 1
    assert value(body, "dflashd_load_failures_total", model="b", code="load_failed") == 1
    assert sum(sample(body, "dflashd_cold_start_seconds", model="a").counts) == 2
    assert sum(sample(body, "dflashd_drain_seconds", model="a").counts) == 1
    delayed = next(e for e in events if e.name == "worker_restart_delayed")
    assert delayed.fields["cause"] == "killed"
    assert "SIGKILL" in str(delayed.fields["reason"])
    again = [e for e in events if e.name == "worker_spawned"][1]
    assert again.fields["restarted_after"] == "killed"
    stop = next(e for e in events if e.name == "worker_stop_began")
    assert stop.fields["how"] == "polite"


def test_gauges_follow_the_state(make_daemon: MakeDaemon) -> None:
    """States, queues and memory are what the status says, and asking loads nothing."""
    daemon = make_daemon({"a": {"chunks": 1000}, "b": {}}, active_requests_per_worker=1)
    with daemon.client() as client:
        body = client.metrics()
        assert value(body, "dflashd_workers", state="stopped") == 2
        assert value(body, "dflashd_workers", state="ready") == 0
        assert value(body, "dflashd_pool_measured_bytes") == 0
        running = [client.generate("a", "x") for _ in range(3)]
        chunks = iter(running[0])
        next(chunks)
        wait_for(
            "two wait", lambda: value(client.metrics(), "dflashd_queued_requests", model="a") == 2
        )
        body = client.metrics()
        assert value(body, "dflashd_active_requests", model="a") == 1
        assert value(body, "dflashd_workers", state="busy") == 1
        assert value(body, "dflashd_workers", state="stopped") == 1
        assert value(body, "dflashd_pool_measured_bytes") == 1000
        assert value(body, "dflashd_worker_memory_bytes", worker="a") == 1000


def test_metrics_on_the_command_line(make_daemon: MakeDaemon) -> None:
    """dflashctl metrics prints a table of what there is, or all of it as JSON."""
    daemon = make_daemon({"a": {}})
    ctl(daemon, "generate", "a", "x")
    shown = ctl(daemon, "metrics")
    assert shown.returncode == 0, shown.stderr
    table = shown.stdout
    assert "dflashd_tokens_total{model=a}" in table
    assert "4 times, mean 0.0" in table
    families = json.loads(ctl(daemon, "metrics", "--json").stdout)["families"]
    names = [f["name"] for f in families]
    assert len(names) == len(set(names))
    for f in families:
        assert f["help"].endswith(".")
        assert f["kind"] != "counter" or f["name"].endswith("_total")
        assert f["kind"] != "histogram" or f["name"].endswith("_seconds")
