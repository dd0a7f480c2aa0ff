"""One load in a worker: what it is told, how its failures are counted, and who hears of them."""

from __future__ import annotations

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Cancel,
    Done,
    Failed,
    Load,
    LoadFailed,
    Ping,
    Progress,
    Stop,
    Unload,
)
from dflashd.supervisor.core.effects import SendToWorker
from dflashd.supervisor.core.events import ClientSent, ShutdownAsked
from dflashd.supervisor.core.facts import ModelFacts, Weights

from .core_bench import GIB, PEER, CoreBench

GROUP = {"group": "g"}


class Loading(CoreBench):
    """The bench whose loads end as a test says."""

    def fail(self, model: str, code: ErrorCode = ErrorCode.load_failed) -> None:
        """A model's load, which is under way, ends like this."""
        row = self.core.state.models[model]
        epoch = self.core.state.workers[row.worker].epoch
        self.says(row.worker, LoadFailed(epoch=epoch, model=model, code=code, message="no"))


def test_load_that_never_says_anything_is_given_up() -> None:
    """The stall timer runs from the order on, not only from the first progress."""
    bench = Loading({"a": 1}, 4, load_stall_s=10, loading_pong_timeout_s=1000)
    bench.slow.add("a")
    bench.spawn("a")
    bench.pass_time(9.5)
    assert bench.killed() == []
    bench.pass_time(0.5)
    assert bench.core.state.workers["a"].cause == "load_stalled"


@pytest.mark.parametrize(
    ("asked", "found", "told"),
    [("auto", "bfloat16", "bfloat16"), ("float32", "bfloat16", "float32"), ("auto", None, "auto")],
)
def test_load_is_ordered_with_the_dtype_memory_was_reckoned_in(
    asked: str, found: str | None, told: str
) -> None:
    """``auto`` means what the files say; what a person says counts, and nothing is made up."""
    bench = Loading({"a": 1}, 4, {"a": {"dtype": asked}})
    bench.slow.add("inspect a")
    bench.spawn("a")
    weights = (Weights(key="a", size_bytes=GIB),)
    known = ModelFacts(model_type="llama", weights=weights, dtype=found or "")
    bench.files_say("a", known if found else ModelFacts(unknown="not on the disk"))
    orders = [e for e in bench.heard if isinstance(e, SendToWorker) and type(e.header) is Load]
    assert [getattr(order.body, "dtype", None) for order in orders] == [told]


def test_loads_of_one_worker_come_one_after_the_other() -> None:
    """The oldest first; one that fails, for whatever reason, leaves the worker to the next."""
    names = ("a", "b", "c")
    bench = Loading(dict.fromkeys(names, 1), 4, {"a": GROUP, "b": GROUP, "c": GROUP})
    bench.slow |= set(names)
    failed = bench.spawn("a")
    for later in ("c", "b"):
        bench.pass_time(1)
        bench.spawn(later)
    assert [header.model for header in bench.ordered(Load)] == ["a"]
    bench.fail("a")
    assert bench.answer(failed).code is ErrorCode.load_failed
    assert [header.model for header in bench.ordered(Load)] == ["a", "c"]
    assert [note["model"] for note in bench.notes("load_began")] == ["a", "c"]
    assert bench.core.state.models["a"].worker == "g", "only a conflict moves it out"
    [note] = bench.notes("load_failed")
    assert (note["model"], note["code"], note["message"]) == ("a", "load_failed", "no")


def test_only_a_lack_of_memory_costs_others_their_place() -> None:
    """A load that fails for another reason is not tried again at once, and evicts nobody."""
    bench = Loading({"idle": 1, "a": 1}, 4)
    bench.spawn("idle")
    bench.pass_time(3)
    bench.slow.add("a")
    bench.spawn("a")
    bench.fail("a")
    assert bench.resident() == {"idle"}
    assert bench.state("a") == "backoff"


def test_memory_that_ran_out_is_tried_once_more_for_each_wish() -> None:
    """Whoever may go by then: the second failure is told; the next wish has two tries again."""
    bench = Loading({"x": 1, "y": 1, "a": 1}, 6)
    bench.spawn("x")
    bench.pass_time(3)
    bench.slow.add("a")
    for idle in ("y", "x"):
        asked = bench.generate("a")
        bench.fail("a", ErrorCode.out_of_memory)
        assert bench.state("a") == "loading"
        bench.spawn(idle)
        bench.pass_time(3)
        bench.fail("a", ErrorCode.out_of_memory)
        assert bench.answer(asked).code is ErrorCode.out_of_memory
        assert bench.resident() == {idle}
        bench.pass_time(10)
    assert len(bench.notes("load_tried_again")) == 2


@pytest.mark.parametrize("stop", ["retire", "shutdown"])
def test_load_that_fails_while_its_model_is_to_go_has_no_next_try(stop: str) -> None:
    """The stop that somebody waits for is its end, also while others still run beside it."""
    bench = Loading({"a": 1, "b": 1}, 4, {"a": GROUP, "b": GROUP})
    bench.spawn("b")
    bench.generate("b")
    bench.slow.add("a")
    waiting = bench.generate("a")
    if stop == "retire":
        bench.retire("a")
    else:
        bench.give(ShutdownAsked())
    assert bench.state("a") == "loading"
    bench.fail("a")
    assert isinstance(bench.answer(waiting), Failed)
    assert bench.state("a") == "absent"
    if stop == "retire":
        assert bench.answer(bench.newest_id) == Done(id=bench.newest_id)


def test_preload_that_cannot_be_had_is_not_wished_for_any_more() -> None:
    """Given up, or larger than there is room: it is down with the reason, and the rest goes on."""
    preload = {"preload": True}
    bench = Loading({"bad": 1, "huge": 9}, 4, {"bad": preload, "huge": preload})
    bench.slow.add("bad")
    bench.begin()
    assert bench.core.state.callers == {}
    bench.fail("bad", ErrorCode.unsupported)
    assert [note["model"] for note in bench.notes("model_given_up")] == ["bad"]
    [note] = bench.notes("memory_refused")
    assert note["model"] == "huge"
    for model in bench.models:
        assert (model.wanted, model.reason != "") == (False, True)
    failed = bench.answer(bench.spawn("huge"))
    assert failed.code is ErrorCode.out_of_memory
    assert failed.message == note["reason"]


def test_operators_word_forgets_how_often_it_went_wrong() -> None:
    """After a spawn the first failure counts as the first, of the model and of its worker."""
    bench = Loading({"a": 1}, 4, backoff_wait_s=1000)
    bench.slow.add("a")
    model, worker = bench.core.state.models["a"], bench.core.state.workers["a"]
    for _ in range(2):
        bench.spawn("a")
        bench.fail("a")
        assert (model.state, len(model.failures)) == ("backoff", 1)
        bench.spawn("a")
        assert bench.state("a") == "loading"
        bench.exit("a", status=-9)
        assert (worker.state, len(worker.failures)) == ("backoff", 1)


def test_worker_is_not_kept_for_who_is_not_next() -> None:
    """Who waits behind another does not hold the room the other waits for: its worker stops."""
    bench = Loading({"a": 3, "b": 3, "x": 3}, 4, {"a": GROUP, "b": GROUP})
    bench.spawn("a")
    running = bench.generate("a")
    bench.generate("x")
    bench.generate("b")
    bench.pass_time(3)
    bench.done(running)
    bench.pass_time(1)
    assert bench.ordered(Stop)
    assert bench.ordered(Unload) == []
    assert bench.resident() == {"x"}


def test_what_an_unload_gave_back_is_asked_for_at_once() -> None:
    """The next look at the worker is due when the model is out, and both ends are written down."""
    bench = Loading({"a": 1, "b": 1}, 4, {"a": GROUP, "b": GROUP}, ping_interval_s=60)
    bench.spawn("a")
    bench.spawn("b")
    assert [note["model"] for note in bench.notes("model_loaded")] == ["a", "b"]
    pings = len(bench.ordered(Ping))
    bench.retire("b")
    assert bench.core.state.workers["g"].state == "ready"
    assert [note["model"] for note in bench.notes("model_unloaded")] == ["b"]
    bench.pass_time(0.5)
    assert len(bench.ordered(Ping)) == pings + 1


def test_time_a_load_takes_is_part_of_when_to_come_again() -> None:
    """Who is refused while the model is not there waits for its load too, as long as it took."""
    bench = Loading({"a": 1}, 4, queued_requests_per_model=2, pong_timeout_s=1000)
    bench.slow.add("a")
    bench.spawn("a")
    bench.pass_time(20)
    bench.loaded("a", "a")
    bench.retire("a")
    bench.generate("a")
    refused = bench.answer(bench.generate("a"))
    assert refused.code is ErrorCode.overloaded
    assert 20 < refused.retry_after_s < 30


def test_reason_to_go_is_not_told_of_the_next_stay() -> None:
    """A drain that an operator asked for is told so, whatever the model went for before."""
    bench = Loading({"a": 2, "b": 3}, 4, drain_timeout_s=5, pong_timeout_s=1000)
    bench.spawn("a")
    running = bench.generate("a")
    waiting = bench.generate("b")
    bench.pass_time(22)
    assert "makes room for b" in bench.core.state.models["a"].going
    bench.done(running)
    assert bench.resident() == {"b"}
    bench.give(ClientSent(peer=PEER, header=Cancel(id=waiting)))
    bench.done(waiting)
    bench.retire("b")
    late = bench.generate("a")
    bench.retire("a")
    bench.pass_time(5)
    assert bench.answer(late).message == (
        "the model was retired by an operator, and its time to finish is over"
    )


def test_load_that_moves_keeps_its_worker_however_long_it_takes() -> None:
    """Whoever computes beside it takes no step meanwhile, and is not blamed for that."""
    limits = {"load_stall_s": 10, "prefill_stall_s": 5, "loading_pong_timeout_s": 1000}
    bench = Loading({"a": 1, "b": 1}, 4, {"a": GROUP, "b": GROUP}, **limits, pong_timeout_s=1000)
    bench.slow |= {"a", "pong"}
    bench.spawn("b")
    bench.generate("b")
    bench.spawn("a")
    for done in range(1, 5):
        bench.pass_time(9)
        header = Progress(epoch=1, model="a", stage="read", done=done, total=9, unit="bytes")
        bench.says("g", header)
    assert bench.state("a") == "loading"
    bench.loaded("g", "a")
    assert bench.notes("model_loaded")[-1]["load_s"] == 36
    a = bench.core.state.models["a"]
    assert (a.state, a.stage, a.stage_done, a.stage_total) == ("ready", "", 0, 0)


def test_worker_speaks_only_of_its_own_models() -> None:
    """What one worker says of another's load changes nothing there."""
    bench = Loading({"a": 1, "b": 1}, 4)
    bench.slow |= {"a", "b"}
    bench.spawn("a")
    bench.spawn("b")
    assert bench.loaded("b", "a") == []
    assert bench.state("a") == "loading"
    assert bench.core.state.counters["stale_dropped"] == 1


def test_preload_is_a_wish_for_the_start_and_no_pin() -> None:
    """Once it is loaded the model is one like any other: idle, it goes for who is asked for."""
    bench = Loading({"a": 3, "b": 3}, 4, {"a": {"preload": True}})
    bench.begin()
    assert bench.resident() == {"a"}
    bench.pass_time(3)
    bench.spawn("b")
    assert bench.resident() == {"b"}


def test_unload_beside_a_load_has_the_time_of_the_load() -> None:
    """A worker that loads hears of it at its load's next step, and is not killed for that."""
    limits = {"load_stall_s": 20, "unload_timeout_s": 5, "loading_pong_timeout_s": 1000}
    bench = Loading({"a": 1, "b": 1}, 4, {"a": GROUP, "b": GROUP}, **limits)
    bench.spawn("b")
    bench.slow |= {"a", "b"}
    bench.spawn("a")
    bench.retire("b")
    bench.pass_time(19.5)
    assert bench.state("b") == "unloading"
    assert bench.killed() == []
    bench.pass_time(0.5)
    assert bench.killed() == ["g"]
