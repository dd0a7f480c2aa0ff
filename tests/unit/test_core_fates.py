"""What becomes of each model when the configuration changes, and what is told of it first."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import Done, Load, LoadFailed, Pin, Unload

from .test_core_placement import File

NEW = {"max_tokens": 3}
PRELOADED = {**NEW, "preload": True}


def test_each_fate_is_told_in_the_words_of_who_uses_the_model() -> None:
    """Whether it is loaded, what still runs, who is not served, and when it loads again."""
    limits: dict[str, Any] = {"active_requests_per_worker": 1, "drain_timeout_s": 7}
    names = ("kept", "idle", "busy", "full", "gone", "out", "light")
    bench = File({name: {} for name in names}, **limits)
    for name in ("kept", "idle", "busy", "full", "gone", "light"):
        bench.spawn(name)
    for name in ("busy", "full", "full", "full"):
        bench.generate(name)
    told = bench.reload(
        {
            "kept": {},
            "idle": NEW,
            "busy": PRELOADED,
            "out": NEW,
            "light": {"preload": True},
            "new": {},
            "soon": {"preload": True},
        },
        dry_run=True,
        **limits,
    )
    assert told == {
        "kept": "",
        "idle": "it is unloaded now, and it loads when it is asked for",
        "busy": "1 running request may take 7 s to finish, then it loads now",
        "out": "it was not loaded",
        "light": "it stays loaded",
        "new": "it loads when it is asked for",
        "soon": "it loads now",
        "full": "1 running request may take 7 s to finish, 2 waiting requests not served",
        "gone": "it is unloaded now",
    }
    told = bench.reload({"kept": NEW, "idle": {}, "out": {"preload": True}}, dry_run=True, **limits)
    assert told["out"] == "", "what is not loaded does not stay loaded"
    assert bench.reload({"kept": {}}, dry_run=True, **limits)["out"] == "it was not loaded"
    bench.reload({"kept": {}}, **limits)
    told = bench.reload({"kept": {}, "busy": {}}, dry_run=True, **limits)
    assert told["busy"] == (
        "1 running request may take 7 s to finish, then it loads when it is asked for"
    )


def test_reload_is_written_down_with_what_it_changes_and_what_it_cannot() -> None:
    """Models by their fate, keys that changed, and loudly those that wait for a restart."""
    bench = File({"kept": {}, "a": {}, "b": {}, "light": {}})
    bench.reload({"kept": {}, "a": NEW, "light": {"preload": True}, "c": {}, "d": {}})
    [note] = bench.notes("config_reloaded")
    assert note == {
        "source": "f",
        "kept": 1,
        "adjusted": "light",
        "replaced": "a",
        "removed": "b",
        "added": "c d",
    }
    assert bench.notes("config_keys_ignored") == []
    same = {"kept": {}, "a": NEW, "light": {"preload": True}, "c": {}, "d": {}}
    bench.reload(same, keepalive_s=3, memory_share=0.5)
    assert bench.notes("config_reloaded")[1:] == [
        {"source": "f", "kept": 5, "daemon": "keepalive_s"}
    ]
    assert bench.notes("config_keys_ignored") == [{"keys": "memory_share"}]


def test_models_are_shown_in_the_order_of_the_file() -> None:
    """Also after a reload that turns it round; who still has to leave comes last."""
    bench = File({"a": {}, "b": {}, "c": {}})
    bench.spawn("b")
    running = bench.generate("b")
    bench.reload({"c": {}, "x": {}, "a": {}})
    assert list(bench.core.state.models) == ["c", "x", "a", "b"]
    bench.done(running)
    assert list(bench.core.state.models) == ["c", "x", "a"]


def test_new_model_is_as_its_section_says() -> None:
    """It is pinned and loaded at once if that is wanted, and is not if it is not."""
    bench = File({"a": {}})
    bench.reload({"a": {}, "b": {"pinned": True, "preload": True}, "c": {}})
    models = bench.core.state.models
    assert bench.resident() == {"b"}
    assert (models["b"].pinned, models["c"].pinned) == (True, False)


def test_model_with_other_settings_is_as_its_section_says() -> None:
    """The file's word on pins replaces an operator's; what was loaded may be loaded again."""
    bench = File({"a": {}, "b": {}, "c": {}, "d": {"pinned": True}})
    for name in ("a", "b", "d"):
        bench.spawn(name)
    pinned = {**PRELOADED, "pinned": True}
    bench.reload({"a": pinned, "b": NEW, "c": pinned, "d": NEW})
    models = bench.core.state.models
    assert [models[name].pinned for name in "abcd"] == [True, False, True, False]
    assert bench.resident() == {"a"}
    assert not models["c"].wanted, "nobody has asked for it"


def test_what_waits_is_served_with_the_new_settings() -> None:
    """Only what runs ends with the old ones, though both were asked before the change."""
    bench = File({"a": {}}, active_requests_per_worker=1)
    bench.spawn("a")
    running, waiting = bench.generate("a"), bench.generate("a")
    bench.reload({"a": NEW}, active_requests_per_worker=1)
    bench.done(running)
    assert bench.core.state.requests[waiting].epoch == 2
    assert len(bench.ordered(Load)) == 2


def test_what_runs_has_a_bound_and_hears_why_it_is_over() -> None:
    """Old settings are not kept for ever for one long request: it is told of the reload."""
    limits: dict[str, Any] = {"drain_timeout_s": 5, "pong_timeout_s": 1000}
    for sections, why in (
        ({"a": NEW, "b": {}}, "the model's configuration has changed"),
        ({"b": {}}, "model a was removed from the configuration"),
    ):
        bench = File({"a": {}, "b": {}}, **limits)
        bench.spawn("a")
        running = bench.generate("a")
        bench.reload(sections, **limits)
        bench.pass_time(4.5)
        assert running in bench.core.state.requests
        bench.pass_time(0.5)
        failed = bench.answer(running)
        assert (failed.code, failed.retryable) == (ErrorCode.cancelled, True)
        assert failed.message == f"{why}, and its time to finish is over"


def test_other_settings_begin_without_the_failures_of_the_old_ones() -> None:
    """What was given up, or waits for its next try, is tried at once; also in a group's worker."""
    group = {"group": "g"}
    bench = File({"a": {}, "b": {}, "c": {}, "m": group}, backoff_first_s=40)
    bench.slow |= {"a", "b", "m"}
    for name in ("a", "b", "m"):
        bench.spawn(name)
    epoch = bench.core.state.workers["a"].epoch
    code = ErrorCode.unsupported
    bench.says("a", LoadFailed(epoch=epoch, model="a", code=code, message="m"))
    bench.exit("b", status=-9)
    bench.exit("g", status=78)
    assert bench.state("a") == "fatal"
    bench.slow.clear()
    bench.slow.add("c")
    waiting = bench.spawn("c")
    sections = {"a": NEW, "b": NEW, "c": {**NEW, **group}, "m": group}
    bench.reload(sections, backoff_first_s=40)
    states = {worker.name: worker.state for worker in bench.core.state.workers.values()}
    assert (states["a"], states["b"]) == ("stopped", "stopped")
    assert bench.answer(bench.spawn("a")) == Done(id=bench.newest_id)
    bench.slow.clear()
    bench.loaded("g", "c")
    assert bench.answer(waiting) == Done(id=waiting), "who waits for it moves with it"


def test_new_model_of_a_group_that_is_down_gets_its_try() -> None:
    """What felled the group's worker may have been another model's fault."""
    group = {"group": "g"}
    bench = File({"m": group})
    bench.slow.add("m")
    bench.spawn("m")
    bench.exit("g", status=78)
    bench.reload({"m": group, "n": {**group, "preload": True}})
    assert bench.resident() == {"n"}


def test_model_that_comes_back_before_it_has_left_is_not_removed() -> None:
    """It was taken out of the file and put in again while its last request runs."""
    bench = File({"a": {}, "b": {}})
    bench.spawn("a")
    running = bench.generate("a")
    bench.reload({"b": {}})
    refused = bench.answer(bench.generate("a"))
    assert (refused.code, refused.message) == (
        ErrorCode.not_found,
        "model a was removed from the configuration",
    )
    assert bench.answer(bench.spawn("a")) == structs.replace(refused, id=bench.newest_id)
    elsewhere = bench.answer(bench.generate("c")).message
    assert elsewhere == "no model c is configured (configured: b)"
    bench.reload({"a": {}, "b": {}})
    waiting = bench.generate("a")
    assert bench.answer(waiting).waits_for == (
        "the model's configuration has changed; it is loaded again when that is done"
    )
    bench.done(running)
    bench.done(waiting)
    assert type(bench.answer(waiting)) is Done
    assert bench.resident() == {"a"}


def test_removed_model_ends_the_commands_that_wait_for_it() -> None:
    """A retire ends well, a load does not; and nothing brings the model back."""
    bench = File({"a": {"preload": True}, "b": {}})
    bench.slow.add("a")
    bench.begin()
    asked = bench.spawn("a")
    bench.reload({"b": {}})
    failed = bench.answer(asked)
    assert (failed.code, failed.message) == (
        ErrorCode.not_found,
        "model a was removed from the configuration",
    )
    assert list(bench.core.state.models) == ["b"]
    assert len(bench.ordered(Load)) == 1
    assert bench.ordered(Unload) == []
    bench = File({"a": {}, "b": {}})
    bench.spawn("a")
    running = bench.generate("a")
    retired = bench.retire("a")
    bench.reload({"b": {}})
    bench.done(running)
    assert bench.answer(retired) == Done(id=retired)
    assert list(bench.core.state.models) == list(bench.core.state.workers) == ["b"]


def test_operators_pin_lasts_until_the_file_says_something_new() -> None:
    """A section that stays as it is leaves its model the pin; one that changes decides anew."""
    bench = File({"a": {}, "b": {}, "c": {"pinned": True}})
    for name, pinned in (("a", True), ("b", True), ("c", False)):
        bench.command(Pin(id=bench.new_id(), model=name, pinned=pinned))
    bench.reload({"a": {}, "b": {"preload": True}, "c": {"pinned": True, "preload": True}})
    models = bench.core.state.models
    assert [models[name].pinned for name in "abc"] == [True, False, True]


def test_load_that_is_being_stopped_is_not_stopped_again() -> None:
    """A second change while the worker ends the first load is one for the next load alone."""
    group = {"group": "g"}
    bench = File({"a": group, "b": group})
    bench.spawn("b")
    bench.slow.add("a")
    waiting = bench.generate("a")
    bench.reload({"a": {**group, "max_tokens": 3}, "b": group})
    bench.reload({"a": {**group, "max_tokens": 4}, "b": group})
    assert [header.model for header in bench.ordered(Unload)] == ["a"]
    bench.slow.clear()
    bench.unloaded("g", "a")
    assert bench.core.state.models["a"].settings.max_tokens == 4
    bench.done(waiting)
    assert bench.resident() == {"a", "b"}
