"""What a host promises to the threads that use it, on a scripted engine."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from dflashd.protocol.ask import generate_body
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import CacheSettings, LoadBody, Name
from dflashd.worker import Host, LoadProgress
from dflashd.worker.errand import Errand, Progress
from dflashd.worker.host.settings import LoadOptions

from .scripted_engine import Clock, ScriptedEngine, Step, say, talk

LIMIT_S = 20.0


class Gate(Clock):
    """A clock whose steps of ``HELD`` length wait until somebody lets them pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = threading.Semaphore(0)
        self.arrivals = threading.Semaphore(0)

    def advance(self, seconds: float) -> None:
        if seconds == HELD_S:
            self.arrivals.release()
            assert self.passes.acquire(timeout=LIMIT_S)

    def arrived(self) -> None:
        """Wait until a step is at the gate."""
        assert self.arrivals.acquire(timeout=LIMIT_S)


HELD_S = 77.0
HELD = say("held", HELD_S)
LONG = [say("x")] * 100_000


class House:
    """A host on a scripted engine with model ``m`` loaded."""

    def __init__(self, **options: Any) -> None:
        self.gate = Gate()
        self.engine = ScriptedEngine(self.gate)
        self.host = Host(make_engine=lambda: self.engine, **options)
        self.host.load("m", "t")

    def ask(self, prompt: str, script: list[Step] | Exception, **options: Any) -> Any:
        self.engine.scripts[prompt] = script
        return self.host.generate(options.pop("model", "m"), prompt, **options)


@pytest.fixture
def house() -> Generator[House]:
    house = House()
    yield house
    house.gate.passes.release(1000)
    house.host.shutdown()


def code(call: Callable[[], object], text: str = "") -> ErrorCode:
    with pytest.raises(DflashError, match=re.escape(text) or None) as caught:
        call()
    return caught.value.code


def until(probe: Callable[[], object]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not probe():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_host_answers_are_iterated_and_waited_for(house: House) -> None:
    """Iterating yields every chunk, far beyond one window; waiting yields the whole."""
    answer = house.ask("a", talk(300))
    assert [chunk.text for chunk in answer] == [str(n) for n in range(300)]
    assert answer.ended
    assert answer.stats is not None
    assert answer.wait().text == "".join(str(n) for n in range(300))
    assert house.ask("b", talk(3)).wait().tokens == (1, 2) * 3


def test_host_bad_arguments_are_refused_where_they_are_given(house: House) -> None:
    """Names, settings and prompts that cannot be are bad_request in the caller, at once."""
    assert code(lambda: house.host.load("", "t")) is ErrorCode.bad_request
    assert code(lambda: house.host.load("n", "t", max_tokens=0)) is ErrorCode.bad_request
    assert code(lambda: house.host.generate("m", "x", top_p=2)) is ErrorCode.bad_request
    assert code(lambda: house.host.generate("m")) is ErrorCode.bad_request
    assert code(lambda: house.host.generate("m", "x", deadline_s=-1)) is ErrorCode.bad_request
    assert code(lambda: house.ask("x", [], model="ghost").wait()) is ErrorCode.not_found


BAD_TIMES: tuple[Any, ...] = ("3", "x", float("nan"), -1, b"", object(), True, [1.0], 10**400)


@pytest.mark.parametrize("bad", BAD_TIMES, ids=lambda bad: type(bad).__name__)
def test_host_bad_times_are_refused_by_name(house: House, bad: Any) -> None:
    """Whatever is no time is a bad_request that names the argument, and nothing has happened."""
    host = house.host
    calls = {
        "deadline_s": lambda: host.generate("m", "x", deadline_s=bad),
        "drain_s": lambda: host.unload("m", drain_s=bad),
        "silence_s": lambda: House(silence_s=bad),
        "slow_consumer_s": lambda: House(slow_consumer_s=bad),
    }
    for name, call in calls.items():
        assert code(call, f"{name}: ") is ErrorCode.bad_request
    assert code(lambda: host.shutdown(drain_s=bad), "drain_s: ") is ErrorCode.bad_request
    assert code(lambda: host.shutdown("m", drain_s=bad), "drain_s: ") is ErrorCode.bad_request
    assert house.ask("a", talk(2)).wait().text == "01"


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("target", lambda host: host.load("n", b"")),
        ("target", lambda host: host.load("n", object())),
        ("target", lambda host: host.load("n", "")),
        ("draft", lambda host: host.load("n", "t", 5)),
        ("name", lambda host: host.load(5, "t")),
        ("on_progress", lambda host: host.load("n", "t", on_progress=5)),
        ("cache", lambda host: host.load("n", "t", cache=object())),
        ("cache.ram_bytes", lambda host: host.load("n", "t", cache={"ram_bytes": "1"})),
        ("cache.ram_bytes", lambda host: host.load("n", "t", cache=CacheSettings(ram_bytes=-1))),
        ("sampling.top_p", lambda host: host.load("n", "t", sampling={"top_p": float("nan")})),
        ("block_tokens", lambda host: host.load("n", "t", block_tokens=True)),
        ("blok_tokens", lambda host: host.load("n", "t", blok_tokens=4)),
        ("name", lambda host: host.unload(5)),
        ("name", lambda host: host.unload("")),
        ("name", lambda host: host.shutdown(b"m")),
        ("model", lambda host: host.cache(None)),
        ("clear", lambda host: host.cache("m", clear="yes")),
        ("model", lambda host: host.generate(5, "x")),
        ("prompt", lambda host: host.generate("m", b"x")),
        ("stop", lambda host: host.generate("m", "x", stop=5)),
        ("stop", lambda host: host.generate("m", "x", stop=[b"x"])),
        ("tokens", lambda host: host.generate("m", tokens=5)),
        ("tokens", lambda host: host.generate("m", tokens=["1"])),
        ("messages", lambda host: host.generate("m", messages="x")),
        ("messages", lambda host: host.generate("m", messages=[{"role": 5, "content": "x"}])),
        ("tools", lambda host: host.generate("m", "x", tools=[object()])),
        ("max_tokens", lambda host: host.generate("m", "x", max_tokens=1.5)),
        ("sampling.temperature", lambda host: host.generate("m", "x", temperature=float("nan"))),
        ("sampling.seed", lambda host: host.generate("m", "x", seed="1")),
        ("speculation", lambda host: host.generate("m", "x", speculation="perhaps")),
        ("ignore_eos", lambda host: host.generate("m", "x", ignore_eos=1)),
        ("make_engine", lambda host: Host(make_engine=5)),  # pyright: ignore[reportArgumentType]
    ],
)
def test_host_bad_arguments_are_refused_by_name(
    house: House, argument: str, call: Callable[[Any], object]
) -> None:
    """What cannot be meant is a bad_request that names the argument, and nothing has happened."""
    before = house.host.statistics()
    assert code(lambda: call(house.host), argument) is ErrorCode.bad_request
    assert house.host.statistics() == before
    assert house.engine.loaded == [("m", LoadBody(target="t"))]


def test_host_sequences_of_every_kind_are_taken(house: House) -> None:
    """Ranges, arrays and subclasses of text and numbers are what they look like."""

    class Prompt(str):
        __slots__ = ()

    house.engine.scripts["x"] = talk(1)
    assert house.host.generate("m", Prompt("x"), stop=("a",)).wait().text == "0"
    assert generate_body(tokens=range(3)).tokens == (0, 1, 2)
    assert generate_body(tokens=array("i", [4, 5])).tokens == (4, 5)


def test_host_settings_are_those_of_the_configuration() -> None:
    """The keywords of ``load`` are the keys of a model's section, all of them."""
    fields = set(LoadBody.__struct_fields__) - {"target", "draft"}
    assert set(LoadOptions.__annotations__) == fields
    assert Name is not None


@pytest.mark.parametrize("leave", ["break", "raise", "drop", "context"])
def test_host_an_abandoned_answer_is_cancelled(house: House, leave: str) -> None:
    """However an answer is left, its request ends and frees the engine."""
    answer = house.ask("a", [*talk(3), HELD, *talk(5000)])

    def read() -> None:
        for chunk in answer:
            if leave == "raise":
                raise ZeroDivisionError(chunk.text)
            break

    if leave == "raise":
        with pytest.raises(ZeroDivisionError):
            read()
    elif leave == "context":
        with answer:
            pass
    elif leave == "break":
        read()
    if leave == "drop":
        del answer
        gc.collect()
    house.gate.passes.release()
    until(lambda: house.host.statistics().models[0].failed == 1)
    assert house.host.statistics().models[0].active == 0


def test_host_cancel_from_another_thread(house: House) -> None:
    """Any thread may cancel; the reader gets what came and then 'cancelled'."""
    answer = house.ask("a", [say("x"), HELD, HELD])
    house.gate.arrived()
    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(answer.cancel)
        house.gate.passes.release(2)
        assert code(answer.wait) is ErrorCode.cancelled
        cancelled.result(LIMIT_S)
    assert code(answer.wait) is ErrorCode.cancelled


def test_host_deadline_holds_also_in_a_long_step(house: House) -> None:
    """A deadline ends the waiting even while the engine is in the middle of a step."""
    answer = house.ask("a", [HELD, say("x")], deadline_s=0.05)
    assert code(answer.wait) is ErrorCode.deadline


def test_host_nobody_waits_for_an_engine_that_stands_still() -> None:
    """Without any deadline, a step that never ends is given up after the silence allowed."""
    house = House(silence_s=0.2)
    answer = house.ask("a", [HELD])
    with pytest.raises(DflashError, match="has not moved for") as caught:
        answer.wait()
    assert caught.value.code is ErrorCode.internal
    assert code(lambda: house.host.cache("m")) is ErrorCode.internal
    assert code(lambda: house.host.load("n", "t")) is ErrorCode.internal
    assert code(lambda: house.host.unload("m")) is ErrorCode.internal
    house.gate.passes.release(10)
    house.host.shutdown()


def test_host_slow_reader_loses_only_its_own() -> None:
    """A reader that takes nothing pauses its request, then loses it; others go on."""
    house = House(slow_consumer_s=0.2)
    slow = house.ask("slow", talk(200))
    assert house.ask("quick", talk(200)).wait().stats.finish_reason == "stop"
    until(lambda: slow.ended)
    assert code(slow.wait) is ErrorCode.slow_consumer
    house.host.shutdown()


def test_host_shutdown_frees_every_waiter(house: House) -> None:
    """Closing while threads wait for answers, loads and caches ends each of them once."""
    loading = threading.Event()

    def load(progress: Progress) -> None:
        loading.set()
        while True:
            progress("weights", 0, 1, "layers")
            time.sleep(0.001)

    house.engine.loads["n"] = load
    answers = [house.ask(str(n), LONG) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(code, answer.wait) for answer in answers]
        loads = [pool.submit(code, lambda: house.host.load("n", "t")) for _ in range(2)]
        assert loading.wait(LIMIT_S)
        house.host.shutdown()
        for waiting in (*waits, *loads):
            assert waiting.result(LIMIT_S) is ErrorCode.shutting_down
    assert code(lambda: house.ask("late", talk(1))) is ErrorCode.shutting_down
    assert code(lambda: house.host.load("late", "t")) is ErrorCode.shutting_down
    house.host.shutdown()
    assert not [t for t in threading.enumerate() if t.name == "engine"]


def test_host_every_request_ends_once_around_a_shutdown() -> None:
    """Threads that keep asking while the host is shut down each get one end per request."""
    house = House()
    ends: list[str] = []

    def ask(n: int) -> None:
        while True:
            try:
                house.ask(f"p{n}", talk(20)).wait()
            except DflashError as error:
                ends.append(str(error.code))
                return

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: house.host.statistics().models[0].completed > 20)
    house.host.shutdown()
    for thread in threads:
        thread.join(LIMIT_S)
    assert ends == ["shutting_down"] * 6


def test_host_load_tells_its_progress_on_the_callers_thread(house: House) -> None:
    """``on_progress`` runs where ``load`` was called, so it may do what it likes there."""
    house.engine.loads["n"] = lambda progress: progress("weights", 1, 2, "layers")
    seen: list[tuple[int, LoadProgress]] = []
    house.host.load("n", "t", on_progress=lambda p: seen.append((threading.get_ident(), p)))
    told = LoadProgress(stage="weights", done=1, total=2, unit="layers")
    assert seen == [(threading.get_ident(), told)]


def test_host_load_is_given_up_by_its_caller(house: House) -> None:
    """An exception out of ``on_progress`` ends the load; what was under the name serves on."""
    ended = threading.Event()

    def load(progress: Progress) -> None:
        try:
            while True:
                progress("weights", 0, 2, "layers")
                time.sleep(0.001)
        finally:
            ended.set()

    def give_up(progress: LoadProgress) -> None:
        raise ZeroDivisionError

    house.engine.loads["m"] = load
    with pytest.raises(ZeroDivisionError):
        house.host.load("m", "t", block_tokens=4, on_progress=give_up)
    assert ended.wait(LIMIT_S)
    assert house.ask("a", talk(2)).wait().text == "01"
    until(lambda: not house.host.statistics().loading)
    del house.engine.loads["m"]
    house.host.load("m", "t", block_tokens=4)


@pytest.mark.parametrize("block_tokens", [4, 8])
def test_host_follows_a_load_that_was_given_up(house: House, block_tokens: int) -> None:
    """A load asked for while one that was given up still ends waits for that, and is done then."""

    def give_up(progress: LoadProgress) -> None:
        raise ZeroDivisionError

    def deaf(progress: Progress) -> None:
        progress("weights", 0, 2, "layers")
        house.gate.advance(HELD_S)
        progress("weights", 1, 2, "layers")

    house.engine.loads["n"] = deaf
    with pytest.raises(ZeroDivisionError):
        house.host.load("n", "t", block_tokens=4, on_progress=give_up)
    house.gate.arrived()
    assert house.host.statistics().loading == ("n",)
    told: list[LoadProgress] = []
    with ThreadPoolExecutor(2) as pool:
        loads = [
            pool.submit(
                house.host.load, "n", "t", block_tokens=block_tokens, on_progress=told.append
            )
            for _ in range(2)
        ]
        until(lambda: sum(not load.running() for load in loads) == 0)
        house.engine.loads["n"] = lambda progress: progress("weights", 2, 2, "layers")
        house.gate.passes.release()
        assert loads[0].result(LIMIT_S) == loads[1].result(LIMIT_S)
    assert {progress.done for progress in told} == {2}
    settings = {model.name: model.settings for model in house.host.statistics().models}
    assert settings["n"].block_tokens == block_tokens
    assert house.ask("a", talk(2), model="n").wait().text == "01"


def test_host_a_load_given_up_while_it_is_fetched_is_gone_at_once(house: House) -> None:
    """What it fetches is called off, no other model waited for it, and the next one succeeds."""
    called_off = threading.Event()

    def fetch(errand: Errand) -> None:
        errand("download", 1, 2, "bytes")
        with errand.ended_by(called_off.set):
            assert called_off.wait(LIMIT_S)
        errand.check()

    seen: list[str] = []

    def give_up(progress: LoadProgress) -> None:
        seen.append(house.ask("beside", talk(3)).wait().text)
        raise ZeroDivisionError

    house.engine.preparations["n"] = fetch
    with pytest.raises(ZeroDivisionError):
        house.host.load("n", "t", on_progress=give_up)
    assert seen == ["012"]
    assert called_off.wait(LIMIT_S)
    house.engine.preparations.clear()
    house.host.load("n", "t")
    assert house.ask("a", talk(2), model="n").wait().text == "01"


def test_host_loads_of_one_name(house: House) -> None:
    """Equal settings: one load for all who ask, none if it is there. Others meanwhile: refused."""
    begun, loads = threading.Event(), 0

    def load(progress: Progress) -> None:
        nonlocal loads
        loads += 1
        begun.set()
        house.gate.advance(HELD_S)

    house.engine.loads["n"] = load
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(house.host.load, "n", "t")
        assert begun.wait(LIMIT_S)
        second = pool.submit(house.host.load, "n", "t")
        assert code(lambda: house.host.load("n", "other")) is ErrorCode.overloaded
        house.gate.passes.release()
        assert first.result(LIMIT_S) == second.result(LIMIT_S)
    house.host.load("n", "t")
    assert loads == 1


def test_host_replaces_a_model_under_its_requests(house: House) -> None:
    """New settings: running requests end on the old model, new ones get the new, then it goes."""
    old = house.ask("old", [say("x"), HELD, say("y")])
    house.gate.arrived()
    old_model = house.engine.generations[-1].model
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(house.host.load, "m", "t", block_tokens=4)
        house.gate.passes.release()
        loaded.result(LIMIT_S)
    assert house.host.statistics().models[0].settings.block_tokens == 4
    again = house.ask("new", [say("z")])
    assert again.wait().text == "z"
    assert house.engine.generations[-1].model is not old_model
    assert old.wait().text == "xheldy"
    until(lambda: old_model.closed == 1)


def test_host_a_failed_replacement_leaves_the_old_one(house: House) -> None:
    """When the new settings do not load, the old model goes on serving, with its statistics."""

    def load(progress: Progress) -> None:
        raise DflashError(ErrorCode.hook_conflict, "somebody else hooks it")

    house.engine.loads["m"] = load
    assert code(lambda: house.host.load("m", "t", block_tokens=4)) is ErrorCode.hook_conflict
    assert house.host.statistics().models[0].settings.block_tokens is None
    assert house.ask("a", talk(2)).wait().text == "01"


def test_host_unload_drains_then_fails(house: House) -> None:
    """Unload refuses new requests, lets the running ones end within its time, then fails them."""
    short, long = house.ask("short", [HELD, say("end")]), house.ask("long", LONG)
    house.gate.arrived()
    with ThreadPoolExecutor(1) as pool:
        gone = pool.submit(house.host.unload, "m", drain_s=0.5)
        until(lambda: code(lambda: house.ask("late", talk(1)).wait()) is ErrorCode.shutting_down)
        house.gate.passes.release()
        assert short.wait().text == "heldend"
        gone.result(LIMIT_S)
        assert code(long.wait) is ErrorCode.shutting_down
    assert house.host.statistics().models == ()
    house.host.shutdown("m")
    house.host.load("m", "t")
    assert house.ask("a", talk(2)).wait().text == "01"


def test_host_unload_ends_a_replacement_too(house: House) -> None:
    """Unload while the name is being loaded anew takes both: the old one and the load."""
    begun = threading.Event()

    def load(progress: Progress) -> None:
        begun.set()
        while True:
            progress("weights", 0, 2, "layers")
            time.sleep(0.001)

    house.engine.loads["m"] = load
    running = house.ask("running", LONG)
    with ThreadPoolExecutor(2) as pool:
        loading = pool.submit(code, lambda: house.host.load("m", "t", block_tokens=4))
        reading = pool.submit(code, running.wait)
        assert begun.wait(LIMIT_S)
        house.host.unload("m")
        assert loading.result(LIMIT_S) is ErrorCode.shutting_down
        assert reading.result(LIMIT_S) is ErrorCode.shutting_down
    assert house.host.statistics().models == ()
    assert code(lambda: house.ask("late", talk(1)).wait()) is ErrorCode.not_found


def test_host_an_engine_that_cannot_start_says_so() -> None:
    """Whoever asked gets the reason, also those who ask afterwards; shutdown returns."""

    def fail() -> ScriptedEngine:
        raise ImportError("no mlx here")

    host = Host(make_engine=fail)
    with pytest.raises(DflashError, match="no mlx here") as caught:
        host.load("m", "t")
    assert caught.value.code is ErrorCode.internal
    assert code(lambda: host.generate("m", "x")) is ErrorCode.internal
    host.shutdown()


def test_host_cache_is_read_and_cleared(house: House) -> None:
    """The prefix cache's state is there for each model; an unknown one is not_found."""
    assert house.host.cache("m").ram_entries == 3
    assert house.host.cache("m", clear=True).ram_entries == 0
    assert code(lambda: house.host.cache("ghost")) is ErrorCode.not_found


def test_host_that_is_dropped_stops() -> None:
    """A host nobody refers to any more ends its thread; an answer keeps its host."""
    house = House()
    answer = house.ask("a", talk(100))
    house.host = None  # pyright: ignore[reportAttributeAccessIssue]
    gc.collect()
    assert len(list(answer)) == 100
    del answer
    gc.collect()
    until(lambda: not [t for t in threading.enumerate() if t.name == "engine"])


def test_host_goes_though_what_made_its_engine_refers_to_it() -> None:
    """Nothing but its users holds a host, nor its descriptors."""
    house = House()
    host = weakref.ref(house.host)
    del house
    gc.collect()
    until(lambda: not [t for t in threading.enumerate() if t.name == "engine"])
    gc.collect()
    assert host() is None


def test_host_and_a_fork_leave_each_other_alone() -> None:
    """A forked child is told to make its own host, and holds the parent's end up by nothing."""
    house = House()
    release_fd, hold_fd = os.pipe()
    child = os.fork()
    if not child:
        code = None
        try:
            house.host.generate("m", "x")
        except DflashError as error:
            code = error.code
        house.host.shutdown()
        os.close(hold_fd)
        os.read(release_fd, 1)  # lives until the parent's host has ended
        os._exit(0 if code is ErrorCode.unsupported else 1)
    try:
        house.host.shutdown()
    finally:
        os.close(hold_fd)
        _, status = os.waitpid(child, 0)
        os.close(release_fd)
    assert os.waitstatus_to_exitcode(status) == 0


CALLS: dict[str, Callable[[House], object]] = {
    "load": lambda house: house.host.load("m", "t", block_tokens=4),
    "unload": lambda house: house.host.unload("m", drain_s=0.2),
    "generate": lambda house: house.ask("x", talk(3)).wait(),
    "cancel": lambda house: house.ask("x", LONG).cancel(),
    "cache": lambda house: house.host.cache("m"),
    "statistics": lambda house: house.host.statistics(),
    "shutdown": lambda house: house.host.shutdown(),
}


@pytest.mark.parametrize("handler", ["shutdown", "ask"])
@pytest.mark.parametrize("interrupted", CALLS)
def test_host_is_called_by_a_signal_handler(interrupted: str, handler: str) -> None:
    """A signal handler may ask, load and shut down the host that its own thread is in, whatever
    line that is at: neither the handler nor the call waits for the other.
    """
    line, reached = 0, True
    while reached:
        line += 1
        reached = _interrupted_at(line, CALLS[interrupted], handler)
    assert line > 10


def _interrupted_at(line: int, call: Callable[[House], object], handler: str) -> bool:
    """``call`` with a handler run before its ``line``-th line inside the library; was there one?"""
    house = House(silence_s=LIMIT_S)
    left, began_s = line, time.monotonic()

    def handle() -> None:
        with suppress(DflashError):
            house.host.statistics()
            if handler == "ask":
                house.ask("handler", talk(2)).wait()
                house.host.load("m", "t", block_tokens=4)
        if handler == "shutdown":
            house.host.shutdown()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if "/worker/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                handle()
        return trace

    try:
        sys.settrace(trace)
        with suppress(DflashError):
            call(house)
    finally:
        sys.settrace(None)
    if handler == "shutdown" and left <= 0:
        assert code(lambda: house.ask("late", talk(1))) is ErrorCode.shutting_down
    house.host.shutdown()
    assert time.monotonic() - began_s < LIMIT_S / 2
    return left <= 0
