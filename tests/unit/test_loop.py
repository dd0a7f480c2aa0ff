"""The engine loop, on scripted generations: one request at a time, and its end."""

from __future__ import annotations

from dflashd.protocol.errors import DflashError, ErrorCode

from .scripted_engine import PREFILL, Stage, Step, say, talk


def test_loop_answers_in_order() -> None:
    """Chunks count from 0 without gaps and are followed by exactly one Done."""
    stage = Stage()
    a = stage.ask("a", [PREFILL, *talk(3)])
    assert stage.run() == 4
    assert stage.told.of(a) == [
        ("chunk", (0, "0")),
        ("chunk", (1, "1")),
        ("chunk", (2, "2")),
        ("done", "stop"),
    ]
    assert stage.engine.generations[0].closed == 1
    assert stage.loop.pulse.active == 0


def test_loop_done_tells_its_times() -> None:
    """Done carries queue and load time as assigned, and time to first token since the assign."""
    stage = Stage()
    a = stage.ask("a", [PREFILL, PREFILL, say("x", 0.5), say("y", 0.5)])
    stage.run()
    result = stage.told.results[a]
    assert (result.queued_ms, result.load_ms) == (5, 7)
    assert round(result.ttft_ms) == 2500
    assert (result.worker_pid, result.model, result.digest) == (77, "m", "d1")
    assert result.memory_bytes == 12345


def test_loop_without_output_is_done() -> None:
    """A request whose first token ends it has no chunk, and a Done."""
    stage = Stage()
    a = stage.ask("a", [PREFILL, Step()])
    stage.run()
    assert stage.told.of(a) == [("done", "stop")]


def test_loop_cancel_between_prefill_chunks() -> None:
    """A cancel during the prompt phase ends the request before its next prefill chunk."""
    stage = Stage()
    a = stage.ask("a", [PREFILL] * 50)
    assert stage.run(2) == 2
    stage.commands.append(lambda loop: loop.cancel(a))
    assert not stage.loop.step()
    assert stage.told.of(a) == [("failed", "cancelled")]
    assert len(stage.engine.generations[0].steps) == 48
    assert stage.engine.generations[0].closed == 1


def test_loop_cancel_between_cycles() -> None:
    """A cancel while decoding ends the request before its next cycle."""
    stage = Stage()
    a = stage.ask("a", talk(50))
    stage.run(3)
    stage.commands.append(lambda loop: loop.cancel(a))
    stage.run()
    assert [kind for kind, _ in stage.told.of(a)] == ["chunk"] * 3 + ["failed"]


def test_loop_cancel_before_start() -> None:
    """A request cancelled before its first step costs the engine nothing."""
    stage = Stage()
    a = stage.ask("a", talk(5))
    stage.loop.cancel(a)
    assert not stage.loop.step()
    assert stage.told.of(a) == [("failed", "cancelled")]
    assert stage.engine.generations == []


def test_loop_cancel_hits_only_its_request() -> None:
    """Cancels of unknown and of ended requests change nothing."""
    stage = Stage()
    a = stage.ask("a", talk(3))
    stage.loop.cancel(b"other")
    stage.run()
    stage.loop.cancel(a)
    stage.loop.cancel(a)
    assert stage.told.endings(a) == [("done", "stop")]


def test_loop_stops_without_credit() -> None:
    """A request is not stepped without credit, goes on with it, and loses nothing."""
    stage = Stage()
    a = stage.ask("a", talk(6), credit=2)
    assert stage.run() == 2
    stage.loop.add_credit(a, 3)
    assert stage.run() == 3
    stage.loop.add_credit(a, 64)
    stage.run()
    chunks = [detail for kind, detail in stage.told.of(a) if kind == "chunk"]
    assert chunks == [(n, str(n)) for n in range(6)]
    assert stage.told.endings(a) == [("done", "stop")]


def test_loop_credit_is_bounded() -> None:
    """However much credit arrives, no more than one window of chunks is ever outstanding."""
    stage = Stage()
    a = stage.ask("a", talk(500))
    for _ in range(10):
        stage.loop.add_credit(a, 64)
    assert stage.run() == 64


def test_loop_prefill_needs_no_credit_beyond_the_first() -> None:
    """Prefill chunks produce no output and use up no credit."""
    stage = Stage()
    a = stage.ask("a", [*[PREFILL] * 5, *talk(2)], credit=1)
    assert stage.run() == 6
    assert [kind for kind, _ in stage.told.of(a)] == ["chunk"]


def test_loop_slow_consumer() -> None:
    """A request left without credit for the limit fails slow_consumer, and idle_s says when."""
    stage = Stage(slow_consumer_s=30)
    a = stage.ask("a", talk(9), credit=1)
    stage.run()
    assert stage.loop.idle_s() == 30
    stage.clock.advance(29.9)
    stage.run()
    assert stage.told.endings(a) == []
    stage.clock.advance(0.2)
    stage.run()
    assert stage.told.endings(a) == [("failed", "slow_consumer")]
    assert stage.loop.idle_s() is None


def test_loop_late_credit_starts_patience_anew() -> None:
    """The wait for credit is counted from the last chunk, not from the first wait."""
    stage = Stage(slow_consumer_s=30)
    a = stage.ask("a", talk(9), credit=1)
    stage.run()
    stage.clock.advance(29)
    stage.loop.add_credit(a, 1)
    stage.run()
    stage.clock.advance(29)
    stage.run()
    assert stage.told.endings(a) == []


def test_loop_deadline_while_decoding() -> None:
    """A request whose deadline passes ends before its next step."""
    stage = Stage()
    a = stage.ask("a", talk(50, takes_s=1.0), deadline_s=3.5)
    stage.run()
    assert [kind for kind, _ in stage.told.of(a)] == ["chunk"] * 4 + ["failed"]
    assert stage.told.endings(a) == [("failed", "deadline")]


def test_loop_deadline_while_waiting_for_credit() -> None:
    """A deadline applies while a request waits for credit, and wakes the loop in time."""
    stage = Stage()
    a = stage.ask("a", talk(50), deadline_s=5, credit=1)
    stage.run()
    idle_s = stage.loop.idle_s()
    assert idle_s is not None
    assert 4.9 < idle_s < 5
    stage.clock.advance(idle_s)
    stage.run()
    assert stage.told.endings(a) == [("failed", "deadline")]


def test_loop_engine_error_fails_one_request() -> None:
    """An exception in one request's step fails that one as internal; the others go on."""
    stage = Stage()
    a = stage.ask("a", [say("x"), Step(raises=RuntimeError("shape mismatch /secret"))])
    b = stage.ask("b", talk(4))
    stage.run()
    assert stage.told.endings(a) == [("failed", "internal")]
    assert stage.told.endings(b) == [("done", "stop")]
    assert [generation.closed for generation in stage.engine.generations] == [1, 1]


def test_loop_typed_error_keeps_its_code() -> None:
    """A typed error at the start of a request reaches the client as it is."""
    stage = Stage()
    a = stage.ask("a", DflashError(ErrorCode.bad_request, "the prompt is too long"))
    stage.run()
    assert stage.told.of(a) == [("failed", "bad_request")]


def test_loop_out_of_memory_is_named_and_reclaimed() -> None:
    """An allocation that fails is reported as out_of_memory, and memory is given back."""
    stage = Stage()
    a = stage.ask("a", [Step(raises=MemoryError())])
    before = stage.engine.reclaims
    stage.run()
    assert stage.told.endings(a) == [("failed", "out_of_memory")]
    assert stage.engine.reclaims == before + 1


def test_loop_output_that_cannot_be_sent() -> None:
    """If a chunk cannot be told, its request fails, and only it."""
    stage = Stage()

    def refuse(id: bytes) -> None:
        if id == b"a":
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    stage.told.on_chunk = refuse
    a = stage.ask("a", talk(3))
    b = stage.ask("b", talk(3))
    stage.run()
    assert stage.told.of(a) == [("failed", "internal")]
    assert stage.told.endings(b) == [("done", "stop")]


def test_loop_unknown_model() -> None:
    """A request for a model that is not here fails at once as not_found."""
    stage = Stage()
    a = stage.ask("a", talk(3), model="other")
    assert stage.told.of(a) == [("failed", "not_found")]


def test_loop_duplicate_id() -> None:
    """A second assign under a running request's id does not disturb it."""
    stage = Stage()
    a = stage.ask("a", talk(3))
    stage.run(1)
    stage.ask("a", talk(3))
    stage.run()
    assert [kind for kind, _ in stage.told.of(a)] == ["chunk"] * 3 + ["done"]


def test_loop_stop_ends_everything() -> None:
    """Stop fails running requests and pending loads once each; later requests are refused."""
    stage = Stage()
    a = stage.ask("a", talk(9))
    stage.run(2)
    stage.commands.append(lambda loop: loop.stop())
    assert not stage.loop.step()
    assert stage.loop.stopped
    assert stage.told.endings(a) == [("failed", "shutting_down")]
    b = stage.ask("b", talk(2))
    assert stage.told.of(b) == [("failed", "shutting_down")]
    assert stage.loop.models == ()


def test_cache_questions_are_answered_between_steps() -> None:
    """The state of a model's cache, before and after it is emptied; unknown models are refused."""
    stage = Stage()
    stage.loop.read_cache(b"a", "m")
    stage.loop.read_cache(b"b", "m", clear=True)
    stage.loop.read_cache(b"c", "nobody")
    assert stage.told.of(b"a") == [("cache_state", 3)]
    assert stage.told.of(b"b") == [("cache_state", 0)]
    assert stage.told.of(b"c") == [("failed", "not_found")]


def test_unload_retires_the_cache() -> None:
    """A model that is unloaded, or left by a stop, is told so that its cache can be retired."""
    stage = Stage(models=("m", "n"))
    held = [stage.loop._registry.get(name) for name in ("m", "n")]
    stage.loop.unload("m")
    stage.loop.stop()
    assert [getattr(model, "closed", None) for model in held] == [1, 1]
