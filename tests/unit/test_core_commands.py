"""What an owner may command, what it is refused, and how a command's wait ends."""

from __future__ import annotations

from typing import Any

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    Assign,
    CacheState,
    Cancel,
    ClearCache,
    Done,
    Failed,
    Header,
    Load,
    LoadFailed,
    Logs,
    Pin,
    ReadCache,
    Retire,
    Shutdown,
    Spawn,
    Stop,
)
from dflashd.supervisor.core.effects import Effect, SendToClient, SignalProcess, StartWatch
from dflashd.supervisor.core.events import ClientSent, ClientVanished, Peer, ShutdownAsked

from .core_bench import PEER, CoreBench
from .test_core_promises import OWNER, Bench, noted, to_clients, to_worker

ID = b"C" * 16
OTHER = Peer("control", b"other")


def commanded(bench: Bench, header: Header, peer: Peer = OWNER) -> list[Effect]:
    return bench.client(header, b"", peer)


def refusal(bench: Bench, header: Header) -> Failed:
    [failed] = to_clients(commanded(bench, header), Failed)
    assert failed.id == ID
    return failed


@pytest.mark.parametrize("kind", [Spawn, Retire, Pin, ReadCache, ClearCache, Logs])
def test_command_for_an_unknown_model_is_refused_by_name(kind: Any) -> None:
    """Every command that names a model says that it is not configured, and what is."""
    failed = refusal(Bench(), kind(id=ID, model="b"))
    assert failed.code is ErrorCode.not_found
    assert failed.message == "no model b is configured (configured: a)"
    assert not failed.retryable


@pytest.mark.parametrize("kind", [ReadCache, ClearCache])
def test_cache_questions_go_to_the_worker_and_back(kind: Any) -> None:
    """A loaded model's worker answers its asker, once, with whatever it has to say."""
    bench = Bench()
    failed = refusal(bench, kind(id=ID, model="a"))
    assert failed.message.startswith("model a is not loaded")
    assert failed.retryable
    bench.ready()
    assert to_worker(commanded(bench, kind(id=ID, model="a")), kind)[0].id == ID
    assert refusal(bench, kind(id=ID, model="a")).message == "this id is in use already"
    answer = CacheState(id=ID, epoch=1)
    [effect] = bench.says(answer, b"state")
    assert isinstance(effect, SendToClient)
    assert (effect.peer, effect.header, effect.body) == (OWNER, answer, b"state")
    assert bench.says(answer, b"state") == []
    assert bench.core.state.counters["stale_dropped"] == 1
    commanded(bench, kind(id=ID, model="a"))
    failed = Failed(id=ID, epoch=1, code=ErrorCode.internal, message="no")
    assert to_clients(bench.says(failed), Failed) == [failed]


def test_cache_question_ends_without_its_worker_too() -> None:
    """In time, by its asker's cancel, with its worker, or with its asker: it never waits on."""
    bench = Bench(release_timeout_s=5, pong_timeout_s=1000)
    bench.ready()
    question = ReadCache(id=ID, model="a")
    commanded(bench, question)
    assert to_clients(bench.pass_time(4.5), Failed) == []
    [failed] = to_clients(bench.pass_time(0.5), Failed)
    assert (failed.id, failed.code, failed.retryable) == (ID, ErrorCode.worker_lost, True)
    assert to_clients(bench.pass_time(1), Failed) == []
    commanded(bench, question)
    assert commanded(bench, Cancel(id=ID), OTHER) == []
    assert bench.core.state.counters["cancels_ignored"] == 1
    assert refusal(bench, Cancel(id=ID)).code is ErrorCode.cancelled
    assert bench.says(CacheState(id=ID, epoch=1), b"late") == []
    assert commanded(bench, Cancel(id=ID)) == []
    assert bench.core.state.counters["cancels_ignored"] == 2
    commanded(bench, question)
    bench.give(ClientVanished(peer=OTHER))
    assert list(bench.worker.questions) == [ID]
    bench.give(ClientVanished(peer=OWNER))
    assert not bench.worker.questions
    commanded(bench, question)
    failed = next(h for h in to_clients(bench.exit(), Failed) if h.id == ID)
    assert (failed.code, failed.retryable) == (ErrorCode.worker_lost, True)


def test_wait_for_a_load_can_be_given_up() -> None:
    """A cancel ends the wait of one command; the load goes on, other owners hear of its end."""
    bench = Bench()
    commanded(bench, Spawn(id=ID, model="a"))
    commanded(bench, Spawn(id=ID, model="a"), OTHER)
    failed = refusal(bench, Cancel(id=ID))
    assert failed.message == "nobody waits for this any more"
    bench.start()
    sent = [e for e in bench.load() if isinstance(e, SendToClient) and isinstance(e.header, Done)]
    assert [effect.peer for effect in sent] == [OTHER]


def test_commands_that_wait_are_bounded() -> None:
    """Beyond the limit a command is told to come back; a stop is carried out all the same."""
    bench = Bench(pending_commands=2)
    bench.ready()
    commanded(bench, ReadCache(id=b"1" * 16, model="a"))
    bench.generate(b"r")
    commanded(bench, Retire(id=b"2" * 16, model="a"))
    headers = [Spawn(id=ID, model="a"), Retire(id=ID, model="a"), ReadCache(id=ID, model="a")]
    for header in [*headers, Shutdown(id=ID, now=True)]:
        sent = to_clients(commanded(bench, header), Failed)
        [failed] = [header for header in sent if header.id == ID]
        assert (failed.code, failed.retryable) == (ErrorCode.overloaded, True)
        assert failed.message == "2 commands wait already"
    assert bench.core.state.shutdown_level == 2


def test_pin_is_answered_and_written_down() -> None:
    """A model is pinned or let go at once, in whatever state it is."""
    bench = Bench()
    model = bench.core.state.models["a"]
    for pinned in (True, False):
        effects = commanded(bench, Pin(id=ID, model="a", pinned=pinned))
        assert [h.id for h in to_clients(effects, Done)] == [ID]
        assert model.pinned is pinned
        assert noted(effects, "model_pinned" if pinned else "model_unpinned") == [{"model": "a"}]


def test_pin_that_is_let_go_makes_room_at_once() -> None:
    """Who waits for another model to be idle takes the unpinned one's place instead."""
    bench = CoreBench({"kept": 2, "busy": 2, "new": 2}, pool=4)
    bench.spawn("kept")
    bench.command(Pin(id=bench.new_id(), model="kept", pinned=True))
    bench.spawn("busy")
    bench.pass_time(3)
    bench.generate("busy")
    bench.generate("new")
    assert bench.state("new") == "absent"
    bench.command(Pin(id=bench.new_id(), model="kept", pinned=False))
    assert bench.resident() == {"busy", "new"}


def test_retire_of_what_is_down_is_answered_and_leaves_it_down() -> None:
    """There is nothing to unload; only a spawn or other settings make it be tried again."""
    bench = Bench()
    bench.generate(b"1")
    bench.start()
    bench.says(LoadFailed(epoch=1, model="a", code=ErrorCode.unsupported, message="no such"))
    bench.exit(0)
    for now in (True, False):
        effects = commanded(bench, Retire(id=ID, model="a", now=now))
        assert [h.id for h in to_clients(effects, Done)] == [ID]
        assert bench.core.state.models["a"].state == "fatal"


def test_retire_now_ends_a_wait_for_the_load_and_the_next_try() -> None:
    """Who commanded the load hears of the stop; a later try is not waited for any more."""
    bench = Bench()
    commanded(bench, Spawn(id=b"D" * 16, model="a"))
    [failed] = to_clients(commanded(bench, Retire(id=ID, model="a", now=True)), Failed)
    assert (failed.id, failed.code, failed.retryable) == (b"D" * 16, ErrorCode.cancelled, True)
    bench.exit(0)
    model = bench.core.state.models["a"]
    commanded(bench, Spawn(id=b"E" * 16, model="a"))
    bench.start()
    bench.says(LoadFailed(epoch=2, model="a", code=ErrorCode.internal, message="m"))
    assert model.state == "backoff"
    effects = commanded(bench, Retire(id=ID, model="a"))
    assert [h.id for h in to_clients(effects, Done)] == [ID]
    assert model.state == "absent"


def test_restart_is_given_up_when_nobody_waits_for_any_of_its_models() -> None:
    """The retire of one leaves the restart to the others of its group; that of the last ends it."""
    sections = {"a": {"group": "g"}, "b": {"group": "g"}}
    bench = CoreBench({"a": 1, "b": 1}, pool=4, sections=sections)
    worker = bench.core.state.workers["g"]
    for model in ("a", "b"):
        bench.spawn(model)
    bench.exit("g", status=-9)
    bench.generate("a")
    bench.generate("b")
    bench.retire("a")
    assert worker.state == "backoff"
    bench.retire("b")
    assert worker.state == "stopped"


def test_preload_that_is_retired_while_it_loads_stays_out() -> None:
    """Also when the load ends in a crash, and who waited for it has gone."""
    sections = {"a": {"preload": True}}
    bench = CoreBench({"a": 1}, pool=4, sections=sections)
    bench.slow.add("a")
    bench.begin()
    id = bench.generate("a")
    retired = bench.retire("a")
    bench.give(ClientSent(peer=PEER, header=Cancel(id=id)))
    bench.exit("a", status=-9)
    assert bench.answer(retired) == Done(id=retired)
    bench.pass_time(60)
    assert bench.state("a") == "absent"
    assert len(bench.ordered(Load)) == 1
    bench = CoreBench({"a": 1}, pool=4, sections=sections)
    bench.slow.add("a")
    bench.begin()
    assert bench.answer(bench.retire("a", now=True)) == Done(id=bench.newest_id)
    bench.pass_time(60)
    assert bench.state("a") == "absent"


def test_second_retire_fails_only_what_came_after_the_first() -> None:
    """Who was promised its end keeps the promise; who waits for the next load does not."""
    bench = Bench(active_requests_per_worker=1)
    bench.ready()
    first, promised = bench.generate(b"1"), bench.generate(b"2")
    commanded(bench, Retire(id=ID, model="a"))
    later = bench.generate(b"3")
    failed = to_clients(commanded(bench, Retire(id=ID, model="a")), Failed)
    assert [h.id for h in failed] == [later]
    effects = bench.says(Done(id=first, epoch=1))
    assert [h.id for h in to_worker(effects, Assign)] == [promised]


def test_drain_waits_for_a_place_that_others_have() -> None:
    """A request that was promised its end is served before its model goes, though none runs."""
    sections = {"a": {"group": "g"}, "b": {"group": "g"}}
    bench = CoreBench({"a": 1, "b": 1}, 4, sections, active_requests_per_worker=1)
    for model in ("a", "b"):
        bench.spawn(model)
    running, promised = bench.generate("b"), bench.generate("a")
    retired = bench.retire("a")
    assert bench.state("a") == "draining"
    bench.done(running)
    bench.done(promised)
    assert len(bench.ordered(Load)) == 2, "the one that was there"
    assert bench.answer(retired) == Done(id=retired)
    [note] = bench.notes("drain_began")
    assert (note["model"], note["limit_s"]) == ("a", bench.core.state.limits.drain_timeout_s)


def test_log_of_a_worker_can_be_read_without_a_process() -> None:
    """Whose log is shown is the worker the model belongs to."""
    bench = Bench()
    header = Logs(id=ID, model="a")
    assert StartWatch(peer=OWNER, header=header, worker="a") in commanded(bench, header)


def test_retire_now_fails_what_runs_and_what_waits() -> None:
    """Nobody is waited for: all that was asked of the model ends, and it goes."""
    bench = Bench(active_requests_per_worker=1)
    bench.ready()
    running, waiting = bench.generate(b"1"), bench.generate(b"2")
    effects = commanded(bench, Retire(id=ID, model="a", now=True))
    failed = {h.id: (h.code, h.retryable) for h in to_clients(effects, Failed)}
    assert failed == dict.fromkeys((running, waiting), (ErrorCode.cancelled, True))
    assert to_worker(effects, Stop)
    assert [h.id for h in to_clients(bench.exit(0), Done)] == [ID]


def test_retire_while_loading_serves_those_who_were_promised() -> None:
    """Requests that wait for a load when its model is retired are served; then it goes."""
    bench = Bench()
    first = bench.generate(b"1")
    bench.start()
    commanded(bench, Retire(id=ID, model="a"))
    bench.load()
    assert bench.core.state.models["a"].state == "draining"
    assert bench.core.state.requests[first].phase.value == "running"
    effects = bench.says(Done(id=first, epoch=1))
    assert to_worker(effects, Stop)


def test_drain_is_bounded() -> None:
    """What a retired model has not finished in time fails, running or waiting; later ones wait."""
    bench = Bench(active_requests_per_worker=1, drain_timeout_s=5, pong_timeout_s=1000)
    bench.ready()
    running, waiting = bench.generate(b"1"), bench.generate(b"2")
    commanded(bench, Retire(id=ID, model="a"))
    later = bench.generate(b"3")
    assert to_clients(bench.pass_time(4.5), Failed) == []
    effects = bench.pass_time(0.5)
    failed = to_clients(effects, Failed)
    assert {h.id for h in failed} == {running, waiting}
    reason = "the model was retired by an operator, and its time to finish is over"
    assert {(h.code, h.message, h.retryable) for h in failed} == {
        (ErrorCode.cancelled, reason, True)
    }
    assert to_worker(effects, Stop)
    assert later in bench.core.state.requests


def test_second_retire_does_not_prolong_a_drain() -> None:
    """Who asks again hears of the same end, which comes no later."""
    bench = Bench(drain_timeout_s=5, pong_timeout_s=1000)
    bench.ready()
    bench.generate(b"1")
    commanded(bench, Retire(id=ID, model="a"))
    bench.pass_time(3)
    commanded(bench, Retire(id=b"D" * 16, model="a"))
    assert to_clients(bench.pass_time(2), Failed)
    assert [h.id for h in to_clients(bench.exit(0), Done)] == [ID, b"D" * 16]


def test_stop_shortens_a_drain_and_never_prolongs_it() -> None:
    """What has longer than a stop gives gets that; what has less keeps it."""
    for drain_s, after_s in ((60, 5), (3, 3)):
        bench = Bench(drain_timeout_s=drain_s, shutdown_drain_s=5, pong_timeout_s=1000)
        bench.ready()
        bench.generate(b"1")
        commanded(bench, Retire(id=ID, model="a"))
        bench.give(ShutdownAsked())
        assert to_clients(bench.pass_time(after_s - 0.5), Failed) == []
        assert to_clients(bench.pass_time(0.5), Failed)


def test_last_word_of_an_operator_counts_while_a_model_drains() -> None:
    """Who commanded a load before a retire, or waits for one after it, does not bring it back."""
    bench = Bench(active_requests_per_worker=1)
    bench.ready()
    running = bench.generate(b"1")
    commanded(bench, Retire(id=ID, model="a"))
    later = bench.generate(b"2")
    commanded(bench, Spawn(id=b"D" * 16, model="a"))
    effects = commanded(bench, Retire(id=b"E" * 16, model="a"))
    failed = {h.id: (h.code, h.retryable) for h in to_clients(effects, Failed)}
    assert failed == dict.fromkeys((later, b"D" * 16), (ErrorCode.cancelled, True))
    bench.says(Done(id=running, epoch=1))
    assert [h.id for h in to_clients(bench.exit(0), Done)] == [ID, b"E" * 16]
    assert bench.worker.state == "stopped"


def test_last_word_of_an_operator_counts_while_a_model_loads() -> None:
    """A load that is commanded after a retire is the next one: it does not end with the model."""
    bench = Bench()
    waiting = bench.generate(b"1")
    bench.start()
    commanded(bench, Spawn(id=b"D" * 16, model="a"))
    effects = commanded(bench, Retire(id=ID, model="a"))
    assert [h.id for h in to_clients(effects, Failed)] == [b"D" * 16]
    commanded(bench, Spawn(id=b"E" * 16, model="a"))
    assert not to_clients(bench.load(), Done)
    bench.says(Done(id=waiting, epoch=1))
    assert [h.id for h in to_clients(bench.exit(0), Done)] == [ID]
    bench.start()
    assert [h.id for h in to_clients(bench.load(), Done)] == [b"E" * 16]
    assert bench.core.state.models["a"].state == "ready"


def test_operators_stop_wins_over_a_worker_that_gives_up() -> None:
    """A worker whose settings are unusable, and that was to go anyway, is stopped, not down."""
    bench = Bench()
    bench.ready()
    bench.generate(b"1")
    commanded(bench, Retire(id=ID, model="a"))
    effects = bench.exit(78)
    assert [h.id for h in to_clients(effects, Done)] == [ID]
    assert bench.worker.state == "stopped"
    assert bench.core.state.counters["worker_failures"] == 1


def test_stop_presses_as_hard_as_it_was_asked_to() -> None:
    """First what runs is finished, then signals are used, then kills; each word only presses on."""
    bench = Bench()
    bench.ready()
    running = bench.generate(b"1")
    effects = bench.give(ShutdownAsked())
    assert to_worker(effects, Stop) == []
    assert bench.core.state.models["a"].state == "draining"
    effects = bench.give(ShutdownAsked())
    [failed] = to_clients(effects, Failed)
    assert (failed.id, failed.code) == (running, ErrorCode.shutting_down)
    assert to_worker(effects, Stop)
    effects = bench.give(ShutdownAsked())
    assert [e.signal for e in effects if isinstance(e, SignalProcess)] == ["kill"]
    assert [e.signal for e in bench.give(ShutdownAsked()) if isinstance(e, SignalProcess)] == []


def test_stop_that_drained_for_too_long_goes_on() -> None:
    """What runs when the daemon stops has a bound as well, and fails as a stop's victim."""
    bench = Bench(shutdown_drain_s=5, pong_timeout_s=1000)
    bench.ready()
    running = bench.generate(b"1")
    bench.give(ShutdownAsked())
    assert to_clients(bench.pass_time(4.5), Failed) == []
    effects = bench.pass_time(0.5)
    [failed] = to_clients(effects, Failed)
    assert (failed.id, failed.code) == (running, ErrorCode.shutting_down)
    assert failed.message == "the daemon is stopping, and its time to finish is over"
    assert to_worker(effects, Stop)


def test_stop_ends_a_backoff_and_every_wait() -> None:
    """What would have been started again later is not; those who waited are told."""
    bench = Bench(backoff_first_s=20, backoff_wait_s=100)
    bench.ready()
    bench.exit()
    waiting = bench.generate(b"1")
    effects = bench.give(ShutdownAsked())
    [failed] = to_clients(effects, Failed)
    assert (failed.id, failed.code) == (waiting, ErrorCode.shutting_down)
    assert bench.worker.state == "stopped"
    refused = refusal(bench, Spawn(id=ID, model="a"))
    assert refused.code is ErrorCode.shutting_down


def test_silent_worker_is_lost() -> None:
    """A worker that answers no ping for too long is killed, loading or not."""
    for loading in (True, False):
        bench = Bench(pong_timeout_s=5, loading_pong_timeout_s=9)
        commanded(bench, Spawn(id=ID, model="a"))
        bench.start()
        if not loading:
            bench.load()
        limit_s = 9 if loading else 5
        bench.pass_time(limit_s - 0.5)
        assert bench.worker.state == ("loading" if loading else "ready")
        bench.pass_time(0.5)
        assert (bench.worker.state, bench.worker.cause) == ("lost", "silent")
        assert bench.worker.reason == f"answered no ping for {limit_s} s"


def test_each_who_commands_the_stop_hears_what_it_waits_for() -> None:
    """Also who asks when the others know already."""
    bench = Bench()
    bench.ready()
    bench.generate(b"1")
    commanded(bench, Shutdown(id=ID))
    sent = [e for e in commanded(bench, Shutdown(id=ID), OTHER) if isinstance(e, SendToClient)]
    waits = [e.header.waits_for for e in sent if e.peer == OTHER and type(e.header) is Accepted]
    assert waits == ["1 running request of a"]
