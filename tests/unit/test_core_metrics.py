"""What the core counts and writes down, and under which words."""

from __future__ import annotations

from collections import Counter

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import Cancel, Chunk, Done, LoadFailed
from dflashd.supervisor.core.events import ClientSent
from dflashd.supervisor.core.metrics import BOUNDS_S, Histogram, ModelMetrics
from dflashd.supervisor.core.metrics_page import metrics_page

from .core_bench import PEER, CoreBench


def metrics(bench: CoreBench, model: str) -> ModelMetrics:
    return bench.core.state.metrics.models[model]


def observed(of: Histogram) -> list[float]:
    """The upper bounds of the buckets that something fell into; infinity for the last."""
    bounds = [*BOUNDS_S, float("inf")]
    return [bound for bound, n in zip(bounds, of.counts, strict=True) for _ in range(n)]


def test_a_duration_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    """A bound belongs to its own bucket; the last one holds what is above them all."""
    times = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 300.0, 301.0):
        times.observe(seconds)
    assert observed(times) == [0.001, 0.001, 0.0025, 300.0, float("inf")]
    assert times.sum_s == pytest.approx(601.0021)


def test_durations_of_a_request_are_counted_once_each() -> None:
    """Load, wait, first token and the time between chunks, each from its own beginning."""
    bench = CoreBench({"a": 1}, pool=4)
    bench.slow.add("a")
    id = bench.generate("a")
    bench.pass_time(4)
    bench.loaded("a", "a")
    bench.now += 0.2
    for seq, tokens in enumerate((3, 2)):
        bench.now += 0.02
        bench.says("a", Chunk(id=id, seq=seq, epoch=1, tokens=tokens), b"x")
    bench.done(id)
    of = metrics(bench, "a")
    assert (of.chunks, of.tokens, of.ends) == (2, 5, {"done": 1})
    assert observed(of.cold_start) == [5.0]
    assert observed(of.queue_wait) == [5.0]
    assert observed(of.first_token) == [5.0]
    assert observed(of.inter_chunk) == [0.025]


def test_every_end_is_counted_under_its_word() -> None:
    """Done, a cancel and a refusal are three counts; a cancel is counted beside its end."""
    bench = CoreBench({"a": 1}, pool=4)
    bench.done(bench.generate("a"))
    waiting = bench.generate("a", deadline_ms=1000)
    bench.give(ClientSent(peer=PEER, header=Cancel(id=waiting)))
    bench.generate("nobody")
    assert metrics(bench, "a").ends == {"done": 1}, "its worker has the last word"
    assert metrics(bench, "a").cancels == 1
    bench.done(waiting)
    assert metrics(bench, "a").ends == {"done": 2}
    assert bench.core.state.metrics.refused == Counter({("", ErrorCode.not_found): 1})
    counters = bench.core.state.counters
    counted = {name: counters[name] for name in ("generates", "completed", "cancels", "not_found")}
    assert counted == {"generates": 3, "completed": 2, "cancels": 1, "not_found": 1}


def test_who_makes_room_is_counted_and_written_down_with_its_idle_time() -> None:
    """An eviction names cause, whom it is for, and for how long nothing had been asked."""
    bench = CoreBench({"a": 2, "b": 2}, pool=3)
    bench.done(bench.generate("a"))
    bench.pass_time(7.25)
    bench.done(bench.generate("b"))
    assert metrics(bench, "a").evictions == {"least_recently_used": 1}
    [note] = bench.notes("model_evicted")
    assert note == {
        "worker": "a",
        "model": "a",
        "cause": "least_recently_used",
        "idle_s": 7.25,
        "room_for": "b",
    }
    bench.pass_time(3)
    bench.slow.add("a")
    bench.generate("a", deadline_ms=1)
    bench.pass_time(3)
    bench.generate("b")
    unwanted = bench.notes("model_evicted")[-1]
    assert (unwanted["cause"], unwanted["idle_s"]) == ("load_unwanted", 0)


def test_failures_are_counted_by_what_failed() -> None:
    """A failed load under its code, a crash under its cause once the worker is started again."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4)
    bench.slow.add("b")
    bench.spawn("b")
    epoch = bench.core.state.workers["b"].epoch
    code = ErrorCode.load_failed
    bench.says("b", LoadFailed(epoch=epoch, model="b", code=code, message="no file"))
    assert metrics(bench, "b").failures == {code: 1}
    bench.spawn("a")
    bench.exit("a", status=-11)
    assert bench.core.state.metrics.restarts == {}
    bench.generate("a")
    bench.pass_time(2)
    assert bench.core.state.metrics.restarts == {("a", "killed"): 1}
    assert bench.core.state.workers["a"].restarts == 1
    assert bench.notes("worker_spawned")[-1]["restarted_after"] == "killed"
    counters = bench.core.state.counters
    assert (counters["load_failures"], counters["worker_failures"]) == (1, 1)


def test_drain_and_kills_are_counted() -> None:
    """How long a model took to end what it computed, and each worker that had to be killed."""
    bench = CoreBench({"a": 1}, pool=4, stop_timeout_s=1, terminate_timeout_s=1, kill_timeout_s=9)
    bench.slow.add("stop a")
    id = bench.generate("a")
    command = bench.retire("a")
    bench.pass_time(4)
    bench.done(id)
    assert observed(metrics(bench, "a").drain) == [5.0]
    bench.pass_time(3)
    assert bench.killed() == ["a", "a"], "SIGTERM and SIGKILL"
    assert bench.core.state.counters["workers_killed"] == 1
    bench.exit("a", status=-9)
    assert bench.answer(command) == Done(id=command)
    bench.spawn("a")
    bench.pass_time(1)
    bench.retire("a", now=True)
    assert observed(metrics(bench, "a").drain) == [5.0], "who goes at once drains nothing"


def test_every_model_is_counted_in_one_state() -> None:
    """Under the word that the status has for it, be it stopped, waiting or busy."""
    bench = CoreBench({"a": 3, "b": 3, "c": 1}, pool=4)
    bench.spawn("a")
    bench.generate("a")
    bench.generate("b")
    page = metrics_page(bench.core.state, bench.core.identity, bench.now)
    family = next(each for each in page.families if each.name == "dflashd_models")
    counted = {sample.labels["state"]: sample.value for sample in family.samples if sample.value}
    assert counted == {"busy": 1, "waiting": 1, "stopped": 1}
