"""What the core does about room in memory: who loads, who waits, who goes."""

from __future__ import annotations

import msgspec

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    Cancel,
    Done,
    Failed,
    Load,
    Loaded,
    LoadedBody,
    LoadFailed,
    Pin,
    Status,
    Unload,
)
from dflashd.supervisor.core import accounts
from dflashd.supervisor.core.events import ClientSent
from dflashd.supervisor.core.facts import PROCESS_BYTES, ModelFacts, Weights

from .core_bench import GIB, OWNER, CoreBench


def test_idle_model_makes_room_and_is_fenced_first() -> None:
    """The one unused for longest goes; the new load starts when its process is gone, not before."""
    bench = CoreBench({"a": 2, "b": 2, "c": 2}, pool=4)
    for name in ("a", "b"):
        bench.done(bench.generate(name))
        bench.pass_time(3)
    bench.slow.add("stop a")
    id = bench.generate("c")
    assert bench.state("a") == "unloading"
    assert bench.state("c") == "absent"
    later = bench.generate("a")
    assert not [h for h in bench.ordered(Load) if h.model == "c"]
    assert "a is leaving" in bench.answer(id).waits_for
    bench.exit("a")
    assert bench.answer(id) == Accepted(id=id)
    # The one that asked while it was leaving comes back, for the next that is idle.
    assert bench.resident() == {"a", "c"}
    assert bench.answer(later) == Accepted(id=later)
    evicted = [(e["model"], e["cause"], e["room_for"]) for e in bench.notes("model_evicted")]
    lru = "least_recently_used"
    assert evicted == [("a", lru, "c"), ("b", lru, "a")]


def test_loads_that_cannot_both_fit_never_both_start() -> None:
    """Of two models that are wanted at once and do not fit together, one waits for the other."""
    bench = CoreBench({"a": 3, "b": 3}, pool=4)
    bench.slow |= {"a", "b", "inspect a", "inspect b"}
    first, second = bench.generate("a"), bench.generate("b")
    bench.inspected("b")
    bench.inspected("a")
    assert sorted((bench.state("a"), bench.state("b"))) == ["absent", "loading"]
    assert bench.answer(first)
    assert "b is loading" in bench.answer(first).waits_for
    assert bench.state("b") == "loading"
    assert bench.answer(second).waits_for == "b is loading"


def test_leased_wanted_pinned_and_fresh_models_stay() -> None:
    """Nobody is made to go who computes, is pinned, or was loaded only just now."""
    bench = CoreBench({"a": 2, "b": 2, "c": 2, "d": 2}, pool=6)
    bench.spawn("a")
    bench.command(Pin(id=bench.new_id(), model="a"))
    serving = bench.generate("b")
    bench.pass_time(5)
    bench.spawn("c")
    waiting = bench.generate("d")
    assert bench.resident() == {"a", "b", "c"}
    assert "b is serving requests" in bench.answer(waiting).waits_for
    bench.pass_time(2.5)
    assert bench.resident() == {"a", "b", "d"}
    assert bench.answer(serving) == Accepted(id=serving)


def test_model_that_can_never_fit_fails_at_once() -> None:
    """A model larger than the pool is refused with its size, and costs nobody its place."""
    bench = CoreBench({"a": 2, "huge": 9}, pool=4)
    bench.spawn("a")
    bench.pass_time(3)
    failed = bench.answer(bench.generate("huge"))
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.out_of_memory
    assert "needs" in failed.message
    assert "memory_share" in failed.message
    assert bench.resident() == {"a"}


def test_nobody_waits_for_ever_behind_steady_traffic() -> None:
    """A model kept out by another's traffic gets its turn after the stated bound, then it turns."""
    bench = CoreBench({"a": 3, "b": 3}, pool=4, max_wait_behind_s=10)
    running = bench.generate("a")
    waiting = bench.generate("b")
    for _ in range(9):
        bench.pass_time(1)
        following = bench.generate("a")
        bench.done(running)
        running = following
        assert bench.resident() == {"a"}
    bench.pass_time(1.5)
    assert bench.state("a") == "draining"
    queued = bench.generate("a")
    assert bench.answer(queued).position == 1
    bench.done(running)
    assert bench.answer(waiting) == Accepted(id=waiting)
    assert bench.resident() == {"b"}
    bench.done(waiting)
    bench.pass_time(2.5)
    assert bench.resident() == {"a"}
    assert bench.answer(queued) == Accepted(id=queued)


def test_turns_are_never_shorter_than_the_least_stay() -> None:
    """Two models that push each other out do so at most once in a least stay."""
    bench = CoreBench({"a": 3, "b": 3}, pool=4, min_residency_s=4, max_wait_behind_s=1)
    for _ in range(40):
        bench.generate("a")
        bench.generate("b")
        bench.pass_time(0.5)
        for request in list(bench.core.state.requests.values()):
            if request.worker:
                bench.done(request.id)
    loads = sum(model.loads for model in bench.models)
    assert 4 <= loads <= 20 / 4 + 1


def test_younger_calls_do_not_take_the_room_made_for_an_older_one() -> None:
    """While room is being made for a model, nobody who came later gets it."""
    bench = CoreBench({"a": 2, "b": 2, "big": 4, "small": 1}, pool=4)
    bench.done(bench.generate("a"))
    bench.done(bench.generate("b"))
    bench.pass_time(3)
    bench.slow |= {"stop a", "stop b"}
    big = bench.generate("big")
    bench.exit("a")
    small = bench.generate("small")
    assert bench.state("small") == "absent"
    bench.exit("b")
    assert bench.answer(big) == Accepted(id=big)
    assert bench.answer(small).position == 1


def test_who_only_waits_lets_others_pass() -> None:
    """A small model loads past one that a busy one keeps out, also if that made room before."""
    bench = CoreBench({"a": 3, "b": 3, "small": 1}, pool=4)
    bench.spawn("a")
    bench.pass_time(3)
    bench.done(bench.generate("b"))
    assert bench.notes("model_evicted")[0]["room_for"] == "b"
    bench.pass_time(3)
    running = bench.generate("a")
    waiting = bench.generate("b")
    assert bench.state("b") == "absent"
    served = bench.generate("small")
    assert bench.answer(served) == Accepted(id=served)
    assert bench.answer(waiting).waits_for
    assert bench.answer(running) == Accepted(id=running)


def test_nobody_passes_who_has_waited_for_too_long() -> None:
    """While others end their work for an overdue model, a younger call does not take their room."""
    bench = CoreBench({"a": 3, "b": 3, "small": 1}, pool=4, max_wait_behind_s=5)
    running = bench.generate("a")
    waiting = bench.generate("b")
    bench.pass_time(6)
    assert bench.state("a") == "draining"
    assert bench.notes("model_evicted")[0]["cause"] == "waited_for_too_long"
    queued = bench.generate("a")
    assert bench.answer(queued).waits_for.startswith("model a makes room for b")
    bench.generate("small")
    assert bench.state("small") == "absent"
    bench.done(running)
    assert bench.answer(waiting) == Accepted(id=waiting)
    assert bench.resident() == {"b", "small"}


def test_worker_that_was_kept_for_a_load_stops_when_nobody_waits_for_it() -> None:
    """A process without a model lives on for the next in line, and no longer than that waits."""
    group = {"group": "g"}
    bench = CoreBench({"a": 2, "b": 3, "c": 2}, pool=4, sections={"a": group, "b": group})
    bench.spawn("a")
    bench.generate("c")
    waiting = bench.spawn("b")
    bench.retire("a")
    worker = bench.core.state.workers["g"]
    assert (bench.resident(), worker.state) == ({"c"}, "loading")
    bench.command(Cancel(id=waiting))
    bench.pass_time(0.5)
    assert worker.state == "stopped"


def test_load_that_nobody_waits_for_is_given_up_for_another() -> None:
    """A load goes on when its client leaves; it ends when another model needs the room."""
    bench = CoreBench({"a": 3, "b": 3}, pool=4)
    bench.slow.add("a")
    id = bench.generate("a", deadline_ms=1000)
    bench.pass_time(2)
    assert bench.answer(id).code is ErrorCode.deadline
    assert bench.state("a") == "loading"
    served = bench.generate("b")
    assert bench.answer(served) == Accepted(id=served)
    assert bench.notes("model_evicted")[0]["cause"] == "load_unwanted"


def test_running_out_of_memory_evicts_tries_once_more_and_fails() -> None:
    """Memory that ran out in a load: idle models go, the load is tried again, then it fails."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4)
    bench.spawn("a")
    bench.pass_time(3)
    bench.slow.add("b")
    id = bench.generate("b")

    def run_out() -> None:
        epoch = bench.core.state.workers["b"].epoch
        code = ErrorCode.out_of_memory
        bench.says("b", LoadFailed(epoch=epoch, model="b", code=code, message="no room for it"))

    run_out()
    assert bench.resident() == set()
    assert bench.state("b") == "loading"
    run_out()
    assert bench.answer(id).code is ErrorCode.out_of_memory
    assert bench.answer(id).message == "no room for it"
    assert len(bench.notes("load_tried_again")) == 1


def test_second_try_waits_for_those_that_leave_and_nobody_passes_it() -> None:
    """After memory ran out the load is tried again when the others are gone, before any younger."""
    bench = CoreBench({"a": 1, "b": 1, "small": 1}, pool=4)
    bench.spawn("a")
    bench.pass_time(3)
    bench.slow |= {"b", "stop a"}
    id = bench.generate("b")
    epoch = bench.core.state.workers["b"].epoch
    failed = LoadFailed(epoch=epoch, model="b", code=ErrorCode.out_of_memory, message="no room")
    bench.says("b", failed)
    assert bench.state("b") == "absent"
    assert "others leave first" in bench.answer(id).waits_for
    bench.generate("small")
    assert bench.state("small") == "absent"
    bench.exit("a")
    assert bench.state("b") == "loading"
    assert bench.resident() == {"small"}
    assert bench.notes("model_evicted")[0]["cause"] == "memory_ran_out"


def test_measured_growth_corrects_what_fits() -> None:
    """A worker that holds more than was reckoned with leaves less room for others."""
    bench = CoreBench({"a": 1, "b": 1}, pool=3)
    running = bench.generate("a")
    bench.pong("a", memory=2.5)
    waiting = bench.generate("b")
    assert bench.state("b") == "absent"
    bench.pong("a", memory=1)
    assert bench.answer(waiting) == Accepted(id=waiting)
    assert bench.answer(running) == Accepted(id=running)


def test_workers_that_outgrow_the_pool_cost_an_idle_model() -> None:
    """When measured memory exceeds the pool, what is idle goes."""
    bench = CoreBench({"a": 1, "b": 1}, pool=3)
    bench.spawn("a")
    bench.generate("b")
    bench.pass_time(3)
    bench.pong("b", memory=3.1)
    assert bench.resident() == {"b"}
    assert bench.notes("model_evicted")[0]["cause"] == "memory_outgrown"


def test_idle_time_counts_from_the_last_completion_and_no_look_resets_it() -> None:
    """A model leaves when nothing ended for its idle time; status does not prolong that."""
    bench = CoreBench({"a": 1}, pool=4, sections={"a": {"idle_ttl_s": 10}})
    id = bench.generate("a")
    bench.pass_time(30)
    assert bench.resident() == {"a"}
    bench.done(id)
    for _ in range(9):
        bench.pass_time(1)
        bench.give(ClientSent(peer=OWNER, header=Status(id=bench.new_id())))
        assert bench.resident() == {"a"}
    bench.pass_time(1)
    assert bench.state("a") == "absent"
    assert bench.notes("model_evicted")[0]["cause"] == "idle"


def test_preloaded_at_the_start_and_pinned_after_a_crash() -> None:
    """What is to be there is loaded without being asked for; a retire ends that."""
    sections = {"a": {"preload": True, "pinned": True, "idle_ttl_s": 1}}
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections=sections)
    bench.begin()
    assert bench.resident() == {"a"}
    bench.pass_time(5)
    bench.exit("a", status=-9)
    bench.pass_time(2)
    assert bench.resident() == {"a"}
    bench.retire("a")
    bench.pass_time(60)
    assert bench.resident() == set()


def test_group_shares_one_worker_and_leaves_it_one_by_one() -> None:
    """Room is made by unloading one of a group, and counts when it is measured."""
    group = {"group": "g"}
    bench = CoreBench({"a": 2, "b": 1, "c": 2}, pool=4, sections={"a": group, "b": group})
    bench.done(bench.generate("a"))
    running = bench.generate("b")
    bench.pass_time(3)
    waiting = bench.generate("c")
    assert [header.model for header in bench.ordered(Unload)] == ["a"]
    assert bench.state("c") == "absent"
    bench.pong("g")
    assert bench.answer(waiting) == Accepted(id=waiting)
    assert bench.answer(running) == Accepted(id=running)


def test_predicted_conflict_is_treated_like_the_guards() -> None:
    """Two backends for one family of models are not tried in one worker."""
    sections = {"a": {"group": "g"}, "b": {"group": "g", "backend": "other"}}
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections=sections)
    bench.spawn("a")
    bench.spawn("b")
    assert bench.core.state.models["b"].worker == "b"
    assert bench.resident() == {"a", "b"}
    assert "backend dflash" in bench.notes("placement_changed")[0]["reason"]
    sections["b"]["placement"] = "strict"
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections=sections)
    bench.spawn("a")
    failed = bench.answer(bench.spawn("b"))
    assert failed.code is ErrorCode.hook_conflict
    assert bench.state("b") == "fatal"


def test_overload_tells_a_time_that_was_measured() -> None:
    """Who is refused is told a time that grows with the queue and with how long requests take."""
    bench = CoreBench({"a": 1}, pool=4, active_requests_per_worker=1, queued_requests_per_model=16)
    for seconds in (10, 10):
        id = bench.generate("a")
        bench.pass_time(seconds)
        bench.done(id)
    ids = [bench.generate("a") for _ in range(10)]
    refused = bench.answer(ids[-1])
    assert refused.code is ErrorCode.overloaded
    assert refused.retry_after_s == 20.0


def test_worker_counts_at_least_what_its_loads_have_reported() -> None:
    """Until it is measured anew a worker holds what its models said, or the more it was seen to."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4)
    bench.slow |= {"a", "b"}
    bench.spawn("a")
    bench.spawn("b")
    bench.pong("b", memory=2)
    bench.loaded("a", "a")
    bench.loaded("b", "b")
    workers = bench.core.state.workers
    assert workers["a"].memory_bytes == GIB
    assert workers["b"].memory_bytes == 2 * GIB + PROCESS_BYTES // 2


def test_guess_ends_with_the_load() -> None:
    """What was counted as half the pool counts as what its worker reports, once it is there."""
    bench = CoreBench({"a": 1, "b": 2.5}, pool=4)
    bench.slow |= {"inspect a", "a"}
    bench.spawn("a")
    bench.files_say("a", ModelFacts(unknown="not on the disk"))
    report = LoadedBody(
        digest="d",
        engine="dflash",
        block_tokens=8,
        context_tokens=9,
        memory_bytes=GIB,
        shared_bytes=GIB // 4,
        device="cpu",
        dtype="float32",
    )
    bench.says("a", Loaded(epoch=1, model="a"), msgspec.msgpack.encode(report))
    held = accounts.holdings(bench.core.state, bench.now)
    assert held.reserved_bytes() == PROCESS_BYTES + GIB * 3 // 4
    bench.pass_time(3)
    bench.spawn("b")
    assert bench.resident() == {"a", "b"}


def test_guess_is_made_anew_for_each_load() -> None:
    """What was cut to the room beside a pinned model is not what counts when that has gone."""
    bench = CoreBench({"kept": 3, "a": 1}, pool=4, sections={"kept": {"pinned": True}})
    bench.slow.add("inspect a")
    bench.spawn("kept")
    guesses: list[int] = []
    for _ in range(2):
        bench.spawn("a")
        bench.files_say("a", ModelFacts(unknown="not on the disk"))
        guesses.append(bench.core.state.models["a"].guess_bytes or 0)
        bench.retire("a")
        bench.retire("kept")
    assert guesses[0] < 1.5 * GIB < 2 * GIB <= guesses[1]


def test_disk_that_does_not_answer_keeps_no_model_out() -> None:
    """A model whose files cannot be looked at in time is tried all the same."""
    bench = CoreBench({"a": 1}, pool=4, inspect_timeout_s=3)
    bench.slow.add("inspect a")
    id = bench.spawn("a")
    bench.pass_time(2)
    assert bench.state("a") == "absent"
    bench.pass_time(2)
    assert bench.answer(id) == Done(id=id)


def test_files_are_looked_at_anew_when_nobody_waited_for_the_last_look() -> None:
    """What files told is for one load: hours later they may be others."""
    bench = CoreBench({"a": 1}, pool=4)
    bench.slow.add("inspect a")
    id = bench.spawn("a")
    bench.command(Cancel(id=id))
    bench.files_say("a", ModelFacts(unknown="not on the disk"))
    assert bench.core.state.models["a"].facts is None
    bench.slow.clear()
    id = bench.spawn("a")
    assert bench.answer(id) == Done(id=id)
    assert bench.core.state.models["a"].facts == ModelFacts(
        model_type="llama", weights=(Weights(key="a", size_bytes=GIB),), dtype="float32"
    )
