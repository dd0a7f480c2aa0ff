"""A request's place in a worker: what the worker is told, who is first, what counts as moving."""

from __future__ import annotations

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import Accepted, Assign, Chunk, Done, Failed, Header

from .core_bench import CoreBench
from .test_core_promises import Bench, to_clients, to_worker

GROUP = {"group": "g"}


def test_lease_tells_what_is_left_of_the_deadline_and_what_the_wait_was_for() -> None:
    """The wait for the load and the wait for a place are told apart, and end the deadline."""
    bench = Bench(active_requests_per_worker=1, keepalive_s=1000)
    bench.generate(b"1", deadline_ms=60_000)
    bench.now = 2.0
    bench.generate(b"2", deadline_ms=60_000)
    bench.start()
    bench.now = 5.0
    [first] = to_worker(bench.load(), Assign)
    assert (first.deadline_ms, first.load_ms, first.queued_ms) == (55_000, 5000, 0)
    bench.now = 7.5
    third = bench.generate(b"3")
    [second] = to_worker(bench.says(Done(id=first.id, epoch=1)), Assign)
    assert (second.deadline_ms, second.load_ms, second.queued_ms) == (54_500, 3000, 2500)
    bench.now = 8.0
    [last] = to_worker(bench.says(Done(id=second.id, epoch=1)), Assign)
    assert (last.id, last.deadline_ms, last.load_ms, last.queued_ms) == (third, None, 0, 500)
    bench.generate(b"4", deadline_ms=1000)
    bench.now = 20.0
    [late] = to_worker(bench.says(Done(id=third, epoch=1)), Assign)
    assert late.deadline_ms == 0


def test_places_go_to_who_has_waited_longest_whichever_model_it_is_for() -> None:
    """Models that share a worker share its places by age, not one after the other."""
    limits = {"active_requests_per_worker": 1}
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections={"a": GROUP, "b": GROUP}, **limits)
    bench.spawn("a")
    bench.spawn("b")
    ids = [bench.generate(model) for model in "abbab"]
    for id in ids:
        bench.done(id)
    assert [header.id for header in bench.ordered(Assign)] == ids


def test_idle_worker_has_its_whole_time_for_the_next_request() -> None:
    """An engine that had nothing to do is not taken for one that has stood still since."""
    bench = Bench(prefill_stall_s=5, decode_stall_s=5, pong_timeout_s=1000)
    bench.ready()
    bench.pass_time(60)
    bench.generate(b"1")
    bench.pass_time(4.5)
    assert bench.worker.state == "busy"
    bench.generate(b"2")
    bench.pass_time(0.5)
    assert (bench.worker.state, bench.worker.cause) == ("lost", "stalled"), "more work is no step"


@pytest.mark.parametrize(
    "word",
    [
        Chunk(id=b"1" * 16, seq=0, epoch=1),
        Done(id=b"1" * 16, epoch=1),
        Failed(id=b"1" * 16, epoch=1, code=ErrorCode.internal, message="m"),
    ],
)
def test_each_word_about_a_request_is_a_step(word: Header) -> None:
    """A worker that says anything of what it computes has not stood still."""
    bench = Bench(prefill_stall_s=5, decode_stall_s=5, pong_timeout_s=1000)
    bench.ready()
    bench.generate(b"1")
    bench.generate(b"2")
    bench.pass_time(4)
    bench.says(word)
    bench.pass_time(4.5)
    assert bench.worker.state == "busy"
    bench.pass_time(0.5)
    assert bench.worker.cause == "stalled"


def test_client_that_hears_its_tokens_is_not_told_where_it_stands() -> None:
    """Silence is counted from the lease and from each chunk; only after it is the place told."""
    bench = Bench(keepalive_s=5, prefill_stall_s=1000, decode_stall_s=1000, pong_timeout_s=1000)
    id = bench.generate(b"1")
    bench.start()
    bench.pass_time(4)
    assert [h.position for h in to_clients(bench.load(), Accepted)] == [0]
    for seq in range(3):
        assert to_clients(bench.pass_time(4.5), Accepted) == []
        bench.says(Chunk(id=id, seq=seq, epoch=1), b"x")
    assert [h.position for h in to_clients(bench.pass_time(5), Accepted)] == [0]


def test_workers_own_failure_reaches_the_client_and_frees_the_place() -> None:
    """What a worker says of a request it cannot compute is its answer, and the next one starts."""
    bench = Bench(active_requests_per_worker=1)
    bench.ready()
    first, second = bench.generate(b"1"), bench.generate(b"2")
    word = Failed(id=first, epoch=1, code=ErrorCode.bad_request, message="too long")
    effects = bench.says(word)
    assert to_clients(effects, Failed) == [word]
    assert [header.id for header in to_worker(effects, Assign)] == [second]
    assert bench.core.state.models["a"].completed == 0
    bench.says(Done(id=second, epoch=1))
    assert bench.core.state.models["a"].completed == 1


def test_word_of_an_earlier_lease_is_dropped_whoever_brings_it() -> None:
    """An id may be used again: the epoch that a worker names has to be the lease's own."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    for word in (Chunk(id=id, seq=0, epoch=9), Done(id=id, epoch=9)):
        assert bench.says(word) == []
    assert bench.core.state.counters["stale_dropped"] == 2
    assert to_clients(bench.says(Done(id=id, epoch=1)), Done)
