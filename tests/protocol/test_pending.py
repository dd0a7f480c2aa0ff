"""One request of a client's, without a connection: its reports, its timers and its one end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from dflashd.protocol.codec import Message
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    AddCredit,
    Cancel,
    Chunk,
    ChunkBody,
    Failed,
    Header,
    Welcome,
)
from dflashd.protocol.pending import Call, Pending
from dflashd.protocol.question import Question, new_id
from dflashd.protocol.stream import Stream

WELCOME = Message(Welcome(instance="i", version="v", window=4), b"")


def asked() -> Question[Message]:
    """A question that any Welcome answers, which is read as it is."""
    return Question(
        id=new_id(), frames=[], answer=Welcome, read=lambda message: message, at_once=False
    )


class Timer:
    """Tells whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = 0

    def cancel(self) -> None:
        self.stopped += 1


def timed(pending: Pending) -> tuple[Timer, Timer]:
    answer, end = Timer(), Timer()
    pending.expect_answer(answer)  # pyright: ignore[reportArgumentType]
    pending.expect_end(end)  # pyright: ignore[reportArgumentType]
    return answer, end


def chunk(stream: Stream, seq: int) -> Message:
    body = ChunkBody(tokens=(seq,), text=str(seq))
    return Message(Chunk(id=stream.id, seq=seq, epoch=1), msgspec.msgpack.encode(body))


def test_first_answer_stops_its_timer_and_the_end_the_other() -> None:
    """Whatever comes first shows that the daemon lives; only the end stops the whole wait."""
    call = Call(asked())
    answer, end = timed(call)
    call.receive(Message(Accepted(id=call.id), b""))
    assert (answer.stopped, end.stopped) == (1, 0)
    call.receive(WELCOME)
    assert (answer.stopped, end.stopped, call.ended) == (1, 1, True)
    failed = Call(asked())
    answer, end = timed(failed)
    failed.fail(TimeoutError())
    assert (answer.stopped, end.stopped) == (1, 1)


def test_it_ends_once() -> None:
    """The first end counts: a later failure changes nothing and is told to nobody."""
    ended: list[Pending] = []
    call = Call(asked())
    call.when_ended(ended.append)
    call.receive(WELCOME)
    call.fail(TimeoutError())
    assert ended == [call]
    assert asyncio.run(call.result()) == WELCOME
    call = Call(asked())
    call.fail(TimeoutError("first"))
    call.fail(TimeoutError("second"))
    with pytest.raises(TimeoutError, match="first"):
        asyncio.run(call.result())


def test_reports_are_passed_on_until_the_end() -> None:
    """Who asked hears each report as it comes, and none behind the end."""
    heard: list[Header] = []
    call = Call(asked(), heard.append)
    report = Accepted(id=call.id, position=2)
    call.receive(Message(report, b""))
    call.receive(WELCOME)
    call.receive(Message(report, b""))
    assert heard == [report]


def test_kind_without_a_meaning_here_is_a_breach() -> None:
    """A message that this sort of request never gets is refused by its name."""
    call, stream = Call(asked()), Stream(lambda _: None)
    for pending, message in ((call, chunk(stream, 0)), (stream, WELCOME)):
        with pytest.raises(DflashError, match="where it has no meaning") as caught:
            pending.receive(message)
        assert caught.value.code is ErrorCode.protocol
        assert not pending.ended


def test_waiting_for_the_end_ends_with_it() -> None:
    """Success, failure and a refusal of the daemon's all end the wait."""

    async def scenario() -> None:
        for end in ("answer", "fail", "failed"):
            call = Call(asked())
            waiting = asyncio.gather(call.end(), call.result(), return_exceptions=True)
            await asyncio.sleep(0)
            if end == "answer":
                call.receive(WELCOME)
            elif end == "fail":
                call.fail(TimeoutError())
            else:
                refused = Failed(id=call.id, code=ErrorCode.not_found, message="no such")
                call.receive(Message(refused, b""))
            _, result = await asyncio.wait_for(waiting, 5)
            assert (result is WELCOME) == (end == "answer")

    asyncio.run(scenario())


def test_stream_reads_in_order_and_gives_credit_back() -> None:
    """Chunks come out as they came in, credit after half a window, and none after the end."""
    told: list[Header] = []
    stream = Stream(told.append, window_chunks=4)

    async def scenario() -> None:
        for seq in range(3):
            stream.receive(chunk(stream, seq))
        read = [await stream.next() for _ in range(3)]
        assert [chunk.text for chunk in read if chunk is not None] == ["0", "1", "2"]
        assert told == [AddCredit(id=stream.id, chunks=2)]
        stream.receive(chunk(stream, 3))
        stream.fail(TimeoutError())
        last = await stream.next()
        assert last is not None
        assert last.text == "3"
        with pytest.raises(TimeoutError):
            await stream.next()

    asyncio.run(scenario())
    assert (stream.tokens, stream.text) == ([0, 1, 2, 3], ["0", "1", "2", "3"])
    assert len(told) == 1, "nobody is given credit behind the end"


def test_stream_refuses_gaps_and_what_it_gave_no_credit_for() -> None:
    """A number out of order, or a chunk beyond the window, is a breach of the protocol."""
    stream = Stream(lambda _: None, window_chunks=1)
    with pytest.raises(DflashError, match="chunk 1 arrived where 0 was due"):
        stream.receive(chunk(stream, 1))
    stream.receive(chunk(stream, 0))
    with pytest.raises(DflashError, match="without credit"):
        stream.receive(chunk(stream, 1))


def test_cancel_is_told_once_and_abandoning_ends_at_once() -> None:
    """A cancel waits for the daemon's word; who abandons does not, nor reads what has come."""
    told: list[Header] = []
    stream = Stream(told.append)
    stream.cancel()
    stream.cancel()
    assert told == [Cancel(id=stream.id)]
    assert not stream.ended
    stream.receive(chunk(stream, 0))
    stream.abandon("enough")
    stream.abandon("again")
    assert stream.ended
    assert len(told) == 1
    with pytest.raises(DflashError, match="enough") as caught:
        asyncio.run(stream.next())
    assert caught.value.code is ErrorCode.cancelled
    ended = Stream(told.append)
    ended.fail(TimeoutError())
    ended.cancel()
    ended.abandon("late")
    assert len(told) == 1
