"""What an owner may command, what it is refused, and how a command's wait ends."""

from __future__ import annotations

from typing import Any

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    CacheState,
    Cancel,
    ClearCache,
    Done,
    Failed,
    Header,
    Logs,
    Pin,
    ReadCache,
    Retire,
    Shutdown,
    Spawn,
    Stop,
)
from dflashd.supervisor.core.effects import Effect, SendToClient, SignalProcess, StartWatch
from dflashd.supervisor.core.events import ClientVanished, Peer, ShutdownAsked

from .test_core_promises import OWNER, Bench, to_clients, to_worker

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


@pytest.mark.parametrize("kind", [ReadCache, ClearCache])
def test_cache_questions_go_to_the_worker_and_back(kind: Any) -> None:
    """A loaded model's worker answers its asker, once, with whatever it has to say."""
    bench = Bench()
    assert refusal(bench, kind(id=ID, model="a")).message.startswith("model a is not loaded")
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
    commanded(bench, question)
    assert commanded(bench, Cancel(id=ID), OTHER) == []
    assert bench.core.state.counters["cancels_ignored"] == 1
    assert refusal(bench, Cancel(id=ID)).code is ErrorCode.cancelled
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
