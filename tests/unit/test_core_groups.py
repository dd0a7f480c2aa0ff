"""Which worker a model belongs to: its group's, its own, or where an operator put it."""

from __future__ import annotations

import msgspec

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import Done, Loaded, LoadedBody, LoadFailed, Unload

from .core_bench import GIB, CoreBench

GROUP = {"group": "g"}


def test_operator_puts_a_model_into_a_group_and_back() -> None:
    """A spawn with a group moves a model that is not loaded; its old worker's row goes."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections={"b": GROUP})
    a, workers = bench.core.state.models["a"], bench.core.state.workers
    assert bench.answer(bench.spawn("a", group="g")) == Done(id=bench.newest_id)
    assert (a.worker, list(workers)) == ("g", ["g"])
    assert set(workers["g"].models) == {"a", "b"}
    assert a.apart == "put into group g by an operator"
    bench.retire("a")
    bench.spawn("a", group="a")
    assert (a.worker, a.apart, set(workers)) == ("a", "", {"a", "g"})
    moves = [(e["left"], e["worker"], e["reason"]) for e in bench.notes("placement_changed")]
    assert moves == [
        ("a", "g", "put into group g by an operator"),
        ("g", "a", "put back by an operator"),
    ]


def test_loaded_model_is_not_moved() -> None:
    """What is in a process has to be retired first; to say where it is already is no move."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4)
    bench.spawn("a")
    refused = bench.answer(bench.spawn("a", group="g"))
    assert refused.code is ErrorCode.bad_request
    assert "`dflashctl retire a` first" in refused.message
    assert bench.answer(bench.spawn("a", group="a")) == Done(id=bench.newest_id)
    refused = bench.answer(bench.spawn("a", group="b"))
    assert "b is a model" in refused.message
    assert not bench.notes("placement_changed")


def test_conflict_without_anybody_else_is_the_models_own() -> None:
    """A model alone in its group is not moved by a conflict: it could not be had elsewhere."""
    bench = CoreBench({"a": 1}, pool=4, sections={"a": GROUP})
    bench.slow.add("a")
    id = bench.spawn("a")
    epoch = bench.core.state.workers["g"].epoch
    code = ErrorCode.hook_conflict
    bench.says("g", LoadFailed(epoch=epoch, model="a", code=code, message="hooked by theirs"))
    assert bench.answer(id).code is code
    assert (bench.state("a"), bench.core.state.models["a"].worker) == ("fatal", "g")


def test_conflict_that_a_worker_reports_moves_the_newcomer() -> None:
    """Who cannot share is loaded in a worker of its own, and says why it is not in its group's."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections={"a": GROUP, "b": GROUP})
    bench.spawn("a")
    bench.slow.add("b")
    id = bench.spawn("b")
    bench.slow.clear()
    epoch = bench.core.state.workers["g"].epoch
    code = ErrorCode.hook_conflict
    bench.says("g", LoadFailed(epoch=epoch, model="b", code=code, message="hooked by theirs"))
    b = bench.core.state.models["b"]
    assert bench.answer(id) == Done(id=id)
    assert (b.worker, bench.resident()) == ("b", {"a", "b"})
    assert b.apart == "not in the worker of group g: hooked by theirs"
    assert bench.core.state.workers["g"].models == ("a",)


def test_crash_of_a_group_during_one_retire_brings_the_others_back() -> None:
    """A model that is retired does not take the restart of its group's other members along."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections={"a": GROUP, "b": GROUP})
    bench.spawn("a")
    bench.spawn("b")
    bench.slow.add("a")
    id = bench.retire("a")
    bench.exit("g", status=-9)
    assert bench.answer(id) == Done(id=id)
    assert bench.core.state.workers["g"].state == "backoff"
    bench.generate("b")
    bench.pass_time(2)
    assert bench.resident() == {"b"}


def test_model_that_is_not_unloaded_in_time_costs_its_worker() -> None:
    """A worker that keeps a model it was told to give up is killed: its memory is needed."""
    sections = {"a": GROUP, "b": GROUP}
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections=sections, unload_timeout_s=5)
    bench.spawn("a")
    bench.spawn("b")
    bench.slow.add("a")
    bench.retire("a")
    bench.pass_time(4.5)
    assert bench.state("a") == "unloading"
    bench.pass_time(0.5)
    worker = bench.core.state.workers["g"]
    assert (worker.state, worker.cause) == ("lost", "unload_timeout")
    assert bench.killed() == ["g"]


def test_shared_weights_pass_to_the_oldest_of_those_who_use_them() -> None:
    """When the model that counted a target for all goes, one of the others counts it."""
    names = ("a", "b", "c", "other")
    bench = CoreBench(dict.fromkeys(names, 1), pool=99, sections=dict.fromkeys(names, GROUP))
    bench.slow |= set(names)
    models = bench.core.state.models

    def load(name: str) -> None:
        bench.spawn(name)
        bench.pass_time(1)
        report = LoadedBody(
            digest="d",
            engine="dflash",
            block_tokens=8,
            context_tokens=9,
            memory_bytes=3 * GIB,
            shared_bytes=0 if name == "a" else 2 * GIB,
            target_digest="o" if name == "other" else "t",
            device="cpu",
            dtype="float32",
        )
        epoch = bench.core.state.workers["g"].epoch
        bench.says("g", Loaded(epoch=epoch, model=name), msgspec.msgpack.encode(report))

    for name in ("other", "a", "b", "c"):
        load(name)
    bench.retire("c")
    bench.unloaded("g", "c")
    assert [models[n].shared_bytes for n in names] == [0, 2 * GIB, 0, 2 * GIB]
    load("c")
    bench.retire("a")
    bench.unloaded("g", "a")
    assert [models[n].shared_bytes for n in names] == [0, 0, 2 * GIB, 2 * GIB]
    assert models["a"].unloads == 1


def test_next_in_line_goes_without_a_word_to_the_worker() -> None:
    """A load that has not been ordered is given up at once, whatever else the worker loads."""
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections={"a": GROUP, "b": GROUP})
    bench.slow |= {"a", "b"}
    bench.spawn("a")
    bench.spawn("b")
    assert (bench.state("a"), bench.state("b")) == ("loading", "loading")
    assert bench.answer(bench.retire("b")) == Done(id=bench.newest_id)
    assert (bench.state("a"), bench.state("b")) == ("loading", "absent")
    assert bench.ordered(Unload) == []
