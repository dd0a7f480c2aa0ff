"""The engine loop with several requests and models: fair shares, loads and unloads."""

from __future__ import annotations

import weakref

import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import LoadBody
from dflashd.worker.errand import Errand, Progress
from dflashd.worker.loop.loop import Loop

from .scripted_engine import PREFILL, Stage, say, talk

BODY = LoadBody(target="t")


def test_sharing_requests_alternate() -> None:
    """Two requests of two models with equal steps take turns."""
    stage = Stage(models=("m", "n"))
    stage.ask("a", talk(4))
    stage.ask("b", talk(4), model="n")
    stage.run()
    order = [id for kind, id, _ in stage.told.told if kind == "chunk"]
    assert order == [b"a", b"b"] * 4


def test_sharing_takes_turns_when_steps_cost_nothing() -> None:
    """Where the clock sees no difference, requests still alternate."""
    stage = Stage()
    stage.ask("a", talk(3, takes_s=0))
    stage.ask("b", talk(3, takes_s=0))
    stage.run()
    assert [id for kind, id, _ in stage.told.told if kind == "chunk"] == [b"a", b"b"] * 3


def test_sharing_long_prefill_does_not_starve_decoding() -> None:
    """Beside a long prefill, a decoding request gets half of the engine's time."""
    stage = Stage()
    stage.ask("long", [PREFILL] * 20)
    stage.ask("chat", talk(900, takes_s=0.05))
    start_s = stage.clock.now_s
    chunks = 0
    while stage.clock.now_s < start_s + 10:
        stage.loop.add_credit(b"chat", 64)
        assert stage.loop.step()
    chunks = len([1 for kind, id, _ in stage.told.told if kind == "chunk" and id == b"chat"])
    assert 80 <= chunks <= 120


def test_sharing_prefill_goes_on_beside_decoding() -> None:
    """Several decoding requests do not starve a prefill either: it gets its share."""
    stage = Stage()
    stage.ask("c1", talk(2000, takes_s=0.05))
    stage.ask("c2", talk(2000, takes_s=0.05))
    stage.run(20)
    long = stage.ask("long", [PREFILL] * 5)
    start_s = stage.clock.now_s
    while not stage.told.endings(long):
        stage.loop.add_credit(b"c1", 64)
        stage.loop.add_credit(b"c2", 64)
        assert stage.loop.step()
    assert stage.clock.now_s - start_s < 16


def test_sharing_newcomers_do_not_starve_a_long_prefill() -> None:
    """A steady stream of short requests leaves a long prefill its share."""
    stage = Stage()
    stage.ask("before", talk(9, takes_s=0.1))
    long = stage.ask("long", [PREFILL] * 10)
    start_s = stage.clock.now_s
    count = 0
    while not stage.told.endings(long):
        if stage.loop.pulse.active < 3:
            count += 1
            stage.ask(f"short{count}", [say("x", 0.1)])
        assert stage.loop.step()
        assert stage.clock.now_s - start_s < 40
    assert count > 50


def test_sharing_late_joiner_does_not_catch_up() -> None:
    """A request that joins late, or waited for credit, gets its share and no more."""
    stage = Stage()
    stage.ask("old", talk(60))
    waiting = stage.ask("waiting", talk(60), credit=1)
    stage.run(40)
    stage.ask("new", talk(60))
    stage.loop.add_credit(waiting, 64)
    before = len(stage.told.told)
    stage.run(30)
    told = [id for _, id, _ in stage.told.told[before:]]
    assert {id: told.count(id) for id in told} == {b"old": 10, b"waiting": 10, b"new": 10}


def test_sharing_unload_during_run() -> None:
    """Unload fails that model's requests, frees memory, answers, and leaves other models alone."""
    stage = Stage(models=("m", "n"))
    a = stage.ask("a", talk(9), model="m")
    b = stage.ask("b", talk(9), model="n")
    stage.run(4)
    reclaims = stage.engine.reclaims
    stage.commands.append(lambda loop: loop.unload("m"))
    stage.run()
    assert stage.told.endings(a) == [("failed", "shutting_down")]
    assert stage.told.of("m") == [("unloaded", None)]
    assert stage.told.endings(b) == [("done", "stop")]
    assert stage.loop.models == ("n",)
    assert stage.engine.reclaims == reclaims + 1
    assert stage.engine.generations[0].closed == 1


def test_sharing_unload_lets_go_before_it_reclaims() -> None:
    """When memory is reclaimed after an unload, nothing in the worker refers to the model."""
    stage = Stage()
    stage.ask("a", talk(9))
    stage.run(3)
    models = [weakref.ref(generation.model) for generation in stage.engine.generations]
    alive: list[bool] = []
    stage.engine.generations.clear()
    stage.engine.on_reclaim = lambda: alive.extend(model() is not None for model in models)
    stage.loop.unload("m")
    assert alive == [False]


def test_sharing_unload_of_unknown_model_is_answered() -> None:
    """Unload is answered also when there is nothing to unload."""
    stage = Stage()
    stage.loop.unload("ghost")
    assert stage.told.of("ghost") == [("unloaded", None)]


def test_sharing_load_lets_others_run() -> None:
    """While a model loads, requests of others get as much time as the load took."""
    stage = Stage()

    def load(progress: Progress) -> None:
        for layer in range(5):
            stage.clock.advance(1.0)
            progress("weights", layer, 5, "layers")

    stage.engine.loads["n"] = load
    stage.ask("a", talk(64, takes_s=0.1))
    stage.loop.load("n", BODY)
    assert stage.loop.step()
    kinds = [kind for kind, _, _ in stage.told.told]
    assert kinds.count("chunk") == pytest.approx(50, abs=5)
    assert kinds[-1] == "loaded"
    assert kinds.index("chunk") < 2


def test_sharing_cancel_is_seen_during_load() -> None:
    """A cancel that arrives while another model loads ends its request at the next progress."""
    stage = Stage()
    a = stage.ask("a", talk(5, takes_s=1))

    def load(progress: Progress) -> None:
        stage.commands.append(lambda loop: loop.cancel(a))
        progress("weights", 0, 2, "layers")
        assert stage.told.of(a) == [("failed", "cancelled")]

    stage.engine.loads["n"] = load
    stage.loop.load("n", BODY)
    stage.run()
    assert stage.told.of("n")[-1] == ("loaded", "d1")


def test_sharing_load_failure_leaves_nothing() -> None:
    """A failed load is answered once, frees memory, and the next load of the name works."""
    stage = Stage()

    def load(progress: Progress) -> None:
        progress("weights", 0, 2, "layers")
        raise ValueError("bad shape")

    stage.engine.loads["n"] = load
    reclaims = stage.engine.reclaims
    stage.loop.load("n", BODY)
    stage.run()
    assert stage.told.of("n")[-1] == ("load_failed", "load_failed")
    assert stage.loop.models == ("m",)
    assert stage.engine.reclaims == reclaims + 1
    del stage.engine.loads["n"]
    stage.loop.load("n", BODY)
    stage.run()
    assert stage.told.of("n")[-1] == ("loaded", "d1")


def test_sharing_load_out_of_memory() -> None:
    """A load that runs out of memory says so."""
    stage = Stage()

    def load(progress: Progress) -> None:
        raise MemoryError

    stage.engine.loads["n"] = load
    stage.loop.load("n", BODY)
    stage.run()
    assert stage.told.of("n") == [("load_failed", "out_of_memory")]


def test_sharing_unload_abandons_a_load() -> None:
    """Unload of a model that is loading ends the load at its next progress; both are answered."""
    stage = Stage()

    def load(progress: Progress) -> None:
        stage.commands.append(lambda loop: loop.unload("n"))
        progress("weights", 0, 2, "layers")
        raise AssertionError("the load was not abandoned")

    stage.engine.loads["n"] = load
    stage.loop.load("n", BODY)
    stage.run()
    assert [kind for kind, _ in stage.told.of("n")] == ["progress", "load_failed", "unloaded"]
    assert stage.loop.models == ("m",)


def test_sharing_abandon_is_not_undone_by_a_deaf_loader() -> None:
    """A loader that swallows the abandonment and finishes does not leave a model behind."""
    stage = Stage()

    def load(progress: Progress) -> None:
        stage.commands.append(lambda loop: loop.unload("n"))
        with pytest.raises(Exception, match="unloaded"):
            progress("weights", 0, 2, "layers")

    stage.engine.loads["n"] = load
    stage.loop.load("n", BODY)
    stage.run()
    assert [kind for kind, _ in stage.told.of("n")] == ["progress", "load_failed", "unloaded"]
    assert stage.loop.models == ("m",)


def test_sharing_stop_abandons_a_load() -> None:
    """Stop during a load ends it at its next progress, and the requests beside it."""
    stage = Stage()
    a = stage.ask("a", talk(5, takes_s=1))

    def load(progress: Progress) -> None:
        stage.commands.append(lambda loop: loop.stop())
        progress("weights", 0, 2, "layers")
        raise AssertionError("the load was not abandoned")

    stage.engine.loads["n"] = load
    stage.loop.load("n", BODY)
    stage.loop.load("o", BODY)
    stage.run()
    assert stage.told.of("n")[-1] == ("load_failed", "shutting_down")
    assert stage.told.of("o") == [("load_failed", "shutting_down")]
    assert stage.told.endings(a) == [("failed", "shutting_down")]
    assert stage.loop.models == ()


def test_sharing_second_load_of_a_name_is_refused() -> None:
    """A name that is loaded is not loaded again, and stays as it is."""
    stage = Stage()
    stage.loop.load("m", BODY)
    a = stage.ask("a", [say("x")])
    stage.run()
    assert stage.told.of("m") == [("load_failed", "bad_request")]
    assert stage.told.endings(a) == [("done", "stop")]


def test_sharing_others_run_while_a_load_is_prepared() -> None:
    """What a load fetches and reads costs no request and no other load a step."""
    stage = Stage(aside=True)
    stage.loop.load("slow", BODY)
    stage.loop.load("quick", BODY)
    a = stage.ask("a", talk(5))
    stage.prepare("quick")
    stage.run()
    assert stage.told.endings(a) == [("done", "stop")]
    assert stage.told.of("quick") == [("loaded", "d1")]
    assert stage.told.of("slow") == []
    stage.prepare("slow")
    stage.run()
    assert stage.loop.models == ("m", "quick", "slow")


def test_sharing_loads_of_a_name_keep_their_order() -> None:
    """A load that is prepared sooner does not pass an earlier one of its name."""
    stage = Stage(aside=True)
    stage.loop.load("n", BODY)
    stage.loop.load("n", LoadBody(target="t", block_tokens=4), replace=True)
    stage.prepare("n", which=1)
    stage.run()
    assert stage.told.of("n") == []
    stage.prepare("n")
    stage.run()
    assert stage.told.of("n") == [("loaded", "d1")] * 2
    assert [body.block_tokens for _, body in stage.engine.loaded[-2:]] == [None, 4]


@pytest.mark.parametrize("how", ["unload", "withdraw", "stop"])
def test_sharing_a_preparation_is_called_off_at_once(how: str) -> None:
    """Whoever takes a load back is answered before its preparation has ended, which is told."""
    stage = Stage(aside=True)
    ends: list[str] = []
    errands: list[Errand] = []

    def prepare(errand: Errand) -> None:
        errands.append(errand)
        with errand.ended_by(lambda: ends.append("now")):
            stage.commands.append(command)
            stage.loop.step()
        assert ends == ["now"]
        errand("download", 1, 2, "bytes")
        raise AssertionError("it was not called off")

    def command(loop: Loop) -> None:
        {
            "unload": lambda: loop.unload("n"),
            "withdraw": lambda: loop.withdraw("n", BODY),
            "stop": loop.stop,
        }[how]()

    stage.engine.preparations["n"] = prepare
    stage.loop.load("n", BODY)
    stage.prepare("n")
    stage.run()
    kinds = [kind for kind, _ in stage.told.of("n")]
    assert kinds == ["load_failed"] + (["unloaded"] if how == "unload" else [])
    with pytest.raises(DflashError), errands[0].ended_by(lambda: ends.append("late")):
        errands[0].check()
    assert ends == ["now", "late"]
    assert "n" not in stage.loop.models


def test_sharing_a_failed_preparation_fails_the_load() -> None:
    """An error of the preparation is the load's; the name can be loaded again."""
    stage = Stage(aside=True)

    def prepare(errand: Errand) -> None:
        errand("download", 0, 2, "bytes")
        raise DflashError(ErrorCode.not_found, "the hub has no such repository")

    stage.engine.preparations["n"] = prepare
    stage.loop.load("n", BODY)
    stage.prepare("n")
    stage.run()
    assert [kind for kind, _ in stage.told.of("n")] == ["progress", "load_failed"]
    assert stage.told.of("n")[-1] == ("load_failed", "not_found")
    stage.engine.preparations.clear()
    stage.loop.load("n", BODY)
    stage.prepare("n")
    stage.run()
    assert stage.told.of("n")[-1] == ("loaded", "d1")


def test_sharing_pulse_moves_with_work() -> None:
    """The step counter moves with every step and every progress of a load."""
    stage = Stage()
    start = stage.loop.pulse.steps

    def load(progress: Progress) -> None:
        progress("weights", 0, 1, "layers")

    stage.engine.loads["n"] = load
    stage.loop.load("n", BODY)
    stage.ask("a", talk(3))
    stage.run()
    assert stage.loop.pulse.steps == start + 2 + 3
    assert stage.loop.pulse.memory_bytes == 12345
