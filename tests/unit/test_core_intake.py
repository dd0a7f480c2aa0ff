"""What a client may ask, what it is refused, and what becomes of it when the client goes."""

from __future__ import annotations

from typing import Any

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    AddCredit,
    Assign,
    Cancel,
    Chunk,
    Done,
    Failed,
    Generate,
    LoadFailed,
    Spawn,
)
from dflashd.supervisor.core.events import (
    ClientErred,
    ClientOverflowed,
    ClientSent,
    ClientVanished,
    Peer,
    ShutdownAsked,
)

from .core_bench import CoreBench
from .test_core_promises import OWNER, PEER, Bench, noted, to_clients, to_worker

STRANGER = Peer("requests", b"stranger")


def refused(bench: Bench, **fields: Any) -> Failed:
    """The answer to a request that is not accepted."""
    asked: dict[str, Any] = {"id": b"9" * 16, "model": "a", **fields}
    header = Generate(**asked)
    [failed] = to_clients(bench.client(header), Failed)
    return failed


def test_id_in_use_is_refused_without_ending_whose_it_is() -> None:
    """The refusal names no id: it would be taken for the end of the request that runs."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    failed = refused(bench, id=id)
    assert (failed.id, failed.code) == (None, ErrorCode.bad_request)
    assert to_clients(bench.says(Done(id=id, epoch=1)), Done)


def test_unknown_model_is_named_with_the_nearest_that_is_known() -> None:
    """A slip of the finger is answered with what may have been meant, and with all there is."""
    bench = Bench()
    assert refused(bench, model="aa").message == (
        "no model aa is configured; did you mean a? (configured: a)"
    )
    assert refused(bench, model="zzz").message == "no model zzz is configured (configured: a)"
    failed = refused(bench, model="zzz")
    assert (failed.code, failed.retryable) == (ErrorCode.not_found, False)
    empty = CoreBench({}, pool=4)
    sentence = empty.answer(empty.generate("a")).message
    assert sentence == "no model a is configured (configured: none)"


def test_what_is_down_is_refused_with_the_reason() -> None:
    """Of a model or worker that was given up no request waits; the way back is told."""
    bench = Bench()
    bench.generate(b"1")
    bench.start()
    bench.says(LoadFailed(epoch=1, model="a", code=ErrorCode.unsupported, message="no such"))
    bench.exit(0)
    failed = refused(bench)
    assert failed.code is ErrorCode.load_failed
    assert failed.message == "model a is down: no such (`dflashctl spawn a` tries again)"
    bench = Bench()
    bench.ready()
    bench.exit(78)
    failed = refused(bench)
    assert failed.code is ErrorCode.load_failed
    assert "model a is down: found its configuration unusable" in failed.message


def test_what_is_down_is_refused_before_a_queue_is_looked_at() -> None:
    """It counts as refused, not as accepted and failed; and that others wait is not its reason."""
    down = CoreBench({"a": 1, "b": 1}, pool=4, queued_requests=2, backoff_first_s=40)
    for model in ("a", "b"):
        down.slow.add(model)
        down.spawn(model)
    waiting = down.generate("b"), down.generate("b")
    assert down.answer(waiting[1]).code is ErrorCode.overloaded
    metrics = down.core.state.metrics
    down.exit("a", status=-9)
    assert down.answer(down.generate("a")).code is ErrorCode.worker_restarting
    assert metrics.refused["a", ErrorCode.worker_restarting] == 1
    down.spawn("a")
    down.exit("a", status=78)
    assert down.answer(down.generate("a")).code is ErrorCode.load_failed
    down.spawn("a")
    code = ErrorCode.unsupported
    down.says("a", LoadFailed(epoch=down.core.state.last_epoch, model="a", code=code, message="m"))
    assert down.answer(down.generate("a")).code is ErrorCode.load_failed
    assert metrics.refused["a", ErrorCode.load_failed] == 2
    assert not metrics.models["a"].ends


@pytest.mark.parametrize("restart_s", [20, None])
def test_who_waits_when_a_worker_falls_is_told_unless_it_is_soon_back(
    restart_s: float | None,
) -> None:
    """Whoever was let in before waits neither for a far restart nor for none at all."""
    bench = Bench(backoff_first_s=20, backoff_wait_s=5)
    id = bench.generate(b"1")
    bench.start()
    [failed] = to_clients(bench.exit(-9 if restart_s else 78), Failed)
    assert failed.id == id
    assert (failed.retry_after_s, failed.retryable) == (restart_s, restart_s is not None)
    if restart_s is None:
        assert failed.code is ErrorCode.load_failed
        assert "`dflashctl spawn a` tries again" in failed.message
    else:
        assert failed.code is ErrorCode.worker_restarting
        assert failed.message.startswith("model a restarts in 20 s: its worker was killed")


def test_failed_load_that_is_tried_again_later_is_refused_with_the_time() -> None:
    """Nobody waits for a try that is far away, be it the worker's or the model's own."""
    bench = Bench(backoff_first_s=20, backoff_wait_s=5)
    bench.generate(b"1")
    bench.start()
    bench.says(LoadFailed(epoch=1, model="a", code=ErrorCode.load_failed, message="no file"))
    failed = refused(bench)
    assert (failed.code, failed.retryable) == (ErrorCode.worker_restarting, True)
    assert failed.retry_after_s == pytest.approx(20)
    assert failed.message == "model a restarts in 20 s after a failure: no file"
    bench.exit(0)
    bench.pass_time(15)
    bench.generate(b"2")
    assert not [h for h in to_clients(bench.heard, Failed) if h.id == b"2" * 16]


def test_stopping_daemon_takes_nothing_new() -> None:
    """While what runs is finished, others are told to come back."""
    bench = Bench()
    bench.ready()
    bench.generate(b"1")
    bench.give(ShutdownAsked())
    failed = refused(bench)
    assert (failed.code, failed.retryable) == (ErrorCode.shutting_down, True)


def ask(bench: Bench, number: int, peer: Peer = PEER, body: bytes = b"p", key: str = "") -> bool:
    """Whether one more request is accepted."""
    header = Generate(id=number.to_bytes(16, "big"), model="a")
    told = bench.give(ClientSent(peer=peer, header=header, body=body, key=key))
    return not to_clients(told, Failed)


@pytest.mark.parametrize("limit", ["queued_requests_per_model", "queued_requests"])
def test_client_that_floods_leaves_room_for_others(limit: str) -> None:
    """One alone fills half of a queue, a second a share of the rest; a third still gets in."""
    bench = Bench(**{limit: 12})
    accepted = [ask(bench, n) for n in range(100)]
    assert accepted == [True] * 6 + [False] * 94
    refused_one = refused(bench)
    assert (refused_one.code, refused_one.retryable) == (ErrorCode.overloaded, True)
    assert refused_one.message == (
        "6 requests wait for model a, 6 in all: "
        "6 are this client's, and the rest of the room is for others"
    )
    assert sum(ask(bench, n, STRANGER) for n in range(100, 200)) == 3
    assert ask(bench, 200, Peer("requests", b"third"))


def test_clients_share_of_bytes_is_what_it_leaves_to_others() -> None:
    """Large prompts of one client do not keep out the small ones of another."""
    bench = Bench(queued_bytes=2**20)
    big = bytes(2**18)
    assert [ask(bench, n, body=big) for n in range(4)] == [True, True, False, False]
    assert ask(bench, 10, STRANGER, big)
    large = Generate(id=b"L" * 16, model="a")
    [failed] = to_clients(bench.client(large, bytes(2**19), Peer("requests", b"third")), Failed)
    assert failed.message == "3 requests wait for model a, 3 in all: no room for another"
    assert ask(bench, 12, Peer("requests", b"third"))


def test_prompt_that_fits_is_taken_from_who_has_nothing_waiting() -> None:
    """A request that would take more than half of the room is not told to come again for ever."""
    bench = Bench(queued_bytes=2**20)
    assert ask(bench, 1, body=bytes(2**20))


def test_connections_with_one_key_have_one_share() -> None:
    """On tcp a client does not get more by connecting more often."""
    bench = Bench(queued_requests=12)
    peers = [Peer("tcp", bytes([n])) for n in range(50)]
    assert sum(ask(bench, n, peer, key="K") for n, peer in enumerate(peers)) == 6
    assert ask(bench, 100, Peer("tcp", b"other"), key="L")


def test_share_is_free_again_when_its_requests_do_not_wait_any_more() -> None:
    """Cancelled, leased and abandoned requests count for nobody's share."""
    bench = Bench(queued_requests=4, active_requests_per_worker=1)
    assert [ask(bench, n) for n in range(3)] == [True, True, False]
    bench.client(Cancel(id=(0).to_bytes(16, "big")))
    assert ask(bench, 3)
    bench.start()
    bench.load()
    assert ask(bench, 4)
    bench.give(ClientVanished(peer=PEER))
    assert len(bench.core.state.shares) == 0


def test_credit_of_who_waits_comes_with_the_lease() -> None:
    """Credit for a waiting request is kept for its worker; for others' or unknown ones ignored."""
    bench = Bench()
    id = bench.generate(b"1", credit=10)
    bench.client(AddCredit(id=id, chunks=5), b"")
    bench.client(AddCredit(id=id, chunks=7), b"", STRANGER)
    bench.client(AddCredit(id=b"?" * 16, chunks=7), b"")
    assert bench.core.state.counters["credits_ignored"] == 2
    bench.start()
    [assigned] = [h for h in to_worker(bench.load(), Assign) if h.id == id]
    assert assigned.credit == 15
    bench.client(AddCredit(id=id, chunks=49), b"")
    assert bench.core.state.counters["credits_clamped"] == 0
    bench.client(AddCredit(id=id, chunks=1), b"")
    assert bench.core.state.counters["credits_clamped"] == 1


def test_credit_of_who_was_answered_reaches_no_worker() -> None:
    """Between its end and its worker's last word a request takes nothing more."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1", credit=1)
    bench.give(ClientErred(peer=PEER, code=ErrorCode.protocol, message="what?", id=id))
    assert bench.client(AddCredit(id=id, chunks=1), b"") == []
    assert bench.core.state.counters["credits_ignored"] == 1


def test_cancel_of_who_waits_ends_it_at_once() -> None:
    """A waiting request's cancel needs no worker; a stranger's cancel ends nothing."""
    bench = Bench()
    id = bench.generate(b"1")
    assert bench.client(Cancel(id=id), b"", STRANGER) == []
    assert bench.core.state.counters["cancels_ignored"] == 1
    [failed] = to_clients(bench.client(Cancel(id=id), b""), Failed)
    assert (failed.id, failed.code) == (id, ErrorCode.cancelled)
    assert not bench.core.state.requests
    assert (bench.core.state.queued, bench.core.state.queued_bytes) == (0, 0)


def test_what_cannot_be_read_is_answered_to_who_sent_it() -> None:
    """An error beside a request of somebody else, or of nobody, ends no request."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    for of in (id, None):
        erred = ClientErred(peer=STRANGER, code=ErrorCode.protocol, message="what?", id=of)
        [failed] = to_clients(bench.give(erred), Failed)
        assert (failed.id, failed.code, failed.message) == (of, ErrorCode.protocol, "what?")
    assert bench.core.state.counters["client_protocol_errors"] == 2
    assert to_clients(bench.says(Done(id=id, epoch=1)), Done)


def test_vanished_client_leaves_nothing_behind() -> None:
    """What it asked is stopped unanswered, waiting and running; others' requests go on."""
    bench = Bench(active_requests_per_worker=1)
    bench.ready()
    running, waiting = bench.generate(b"1"), bench.generate(b"2")
    bench.client(Generate(id=b"3" * 16, model="a"), peer=STRANGER)
    effects = bench.give(ClientVanished(peer=PEER))
    assert [h.id for h in to_worker(effects, Cancel)] == [running]
    assert to_clients(effects, Failed) == []
    assert waiting not in bench.core.state.requests
    assert bench.core.state.counters["requests_orphaned"] == 2
    late = bench.says(Chunk(id=running, seq=0, epoch=1), b"x")
    assert (late, bench.core.state.counters["chunks_late"]) == ([], 1)
    effects = bench.says(Done(id=running, epoch=1))
    assert to_clients(effects, Done) == []
    assert [h.id for h in to_worker(effects, Assign)] == [b"3" * 16]
    assert bench.core.state.counters["clients_vanished"] == 1


def test_vanished_owner_takes_no_other_owners_answer_along() -> None:
    """Commands of who is gone are forgotten, and what they began goes on; others hear their end."""
    bench = Bench()
    gone = Peer("control", b"gone")
    for peer in (OWNER, gone):
        bench.client(Spawn(id=b"S" * 16, model="a"), peer=peer)
    bench.give(ClientVanished(peer=gone))
    assert [command.peer for command in bench.core.state.models["a"].spawns] == [OWNER]
    bench.start()
    assert [h.id for h in to_clients(bench.load(), Done)] == [b"S" * 16]


def test_client_that_does_not_read_loses_all_it_asked_for() -> None:
    """Its requests end as a slow consumer's, those of others do not."""
    bench = Bench()
    bench.ready()
    mine = [bench.generate(b"1"), bench.generate(b"2")]
    bench.client(Generate(id=b"3" * 16, model="a"), peer=STRANGER)
    failed = to_clients(bench.give(ClientOverflowed(peer=PEER)), Failed)
    assert [(h.id, h.code) for h in failed] == [(id, ErrorCode.slow_consumer) for id in mine]
    assert bench.core.state.counters["clients_overflowed"] == 1


def test_worker_out_of_order_fails_one_request() -> None:
    """A gap in the numbers, or a chunk beyond the credit, ends that request as our error."""
    bench = Bench()
    bench.ready()
    gap, beyond = bench.generate(b"1"), bench.generate(b"2", credit=1)
    for id, seq in ((gap, 1), (beyond, 0), (beyond, 1)):
        effects = bench.says(Chunk(id=id, seq=seq, epoch=1), b"x")
        failed = to_clients(effects, Failed)
        if (id, seq) == (beyond, 0):
            assert len(to_clients(effects, Chunk)) == 1
            continue
        assert [(h.id, h.code) for h in failed] == [(id, ErrorCode.internal)]
        assert [h.id for h in to_worker(effects, Cancel)] == [id]
        [note] = noted(effects, "chunk_out_of_order")
        assert (note["request"], note["seq"]) == (id.hex(), 1)
    assert bench.core.state.counters["worker_protocol_errors"] == 2
    assert bench.core.state.counters["chunks"] == 1


def test_complaint_of_a_worker_is_written_down() -> None:
    """A worker's error about no request, or about no lease of one, is nobody's answer."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    for of, epoch in ((None, None), (None, 1), (id, None)):
        word = Failed(id=of, epoch=epoch, code=ErrorCode.protocol, message="what?")
        effects = bench.says(word)
        assert to_clients(effects, Failed) == []
        assert [note["message"] for note in noted(effects, "worker_complained")] == ["what?"]
    assert bench.core.state.counters["worker_complaints"] == 3
    assert to_clients(bench.says(Done(id=id, epoch=1)), Done)
