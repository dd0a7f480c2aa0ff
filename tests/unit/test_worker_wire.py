"""Between the engine thread and the socket: messages, the outbox, the log."""

from __future__ import annotations

import select

import pytest

from dflashd.protocol.codec import Message, decode, encode
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    Assign,
    ChunkBody,
    Failed,
    FromWorker,
    GenerateBody,
    Load,
    LoadFailed,
    Progress,
    Stop,
)
from dflashd.worker.log import line
from dflashd.worker.loop.dispatch import dispatch
from dflashd.worker.process.outbox import Outbox
from dflashd.worker.process.wire import WireEffects

from .scripted_engine import Stage, talk

ID = bytes(16)


def taken(outbox: Outbox) -> list[Message]:
    """All that waits in an outbox."""
    messages: list[Message] = []
    while (frames := outbox.first()) is not None:
        messages.append(decode(frames, FromWorker))
        outbox.sent()
    return messages


def test_wire_long_reasons_stay_readable_messages() -> None:
    """However long or odd an error's sentence is, the failure itself always arrives."""
    outbox = Outbox()
    effects = WireEffects(3, outbox)
    error = DflashError(ErrorCode.internal, "ü\ud800" * 20_000)
    effects.failed(ID, error)
    effects.load_failed("m", error)
    failed, load_failed = (message.header for message in taken(outbox))
    assert isinstance(failed, Failed)
    assert isinstance(load_failed, LoadFailed)
    assert (failed.id, failed.epoch, failed.code) == (ID, 3, ErrorCode.internal)


def test_wire_text_that_is_not_text_is_refused() -> None:
    """A chunk that cannot be encoded raises before anything of it is queued."""
    outbox = Outbox()
    with pytest.raises(DflashError):
        WireEffects(3, outbox).chunk(ID, 0, ChunkBody(tokens=(1,), text="\ud800"))
    assert not len(outbox)


def test_wire_progress_is_thinned() -> None:
    """Of a flood of progress, each stage's first and last get through, and few between."""
    outbox = Outbox()
    effects = WireEffects(3, outbox)
    for stage in ("digest", "weights" * 50):
        for done in range(1001):
            effects.progress("m", stage, done, 1000, "layers")
    told = [message.header for message in taken(outbox)]
    assert all(isinstance(header, Progress) for header in told)
    ends = [header.done for header in told if isinstance(header, Progress)]
    assert (ends[0], ends[-1], ends.count(0), ends.count(1000)) == (0, 1000, 2, 2)
    assert len(ends) < 40


def test_outbox_wakes_its_reader() -> None:
    """A message makes the outbox readable until it is quieted, however many came."""
    outbox = Outbox()

    def readable() -> bool:
        return bool(select.select([outbox], [], [], 0)[0])

    assert not readable()
    for _ in range(100_000):
        outbox.wake()
    outbox.put([b"x"])
    assert readable()
    outbox.quiet()
    assert not readable()
    assert outbox.first() == [b"x"]


def test_outbox_drops_only_what_may_be_lost() -> None:
    """With a backlog an offer is refused, a put is not."""
    outbox = Outbox()
    for _ in range(100):
        outbox.put([b"x"])
    assert not outbox.offer([b"y"])
    assert len(outbox) == 100


def test_log_values_stay_on_their_line() -> None:
    """A value with blanks, quotes or line breaks cannot forge a field or a line."""
    text = line("event", a="plain", b="two words", c="x\ny=1", d=b"\x01", e="")
    assert text == 'event a=plain b="two words" c="x\\ny=1" d=01 e=""'


def test_dispatch_answers_bodies_it_cannot_read() -> None:
    """A Load or Assign with a broken body is answered in its own way."""
    stage = Stage()
    dispatch(Message(Load(epoch=1, model="x"), b"\xc1"), 0, stage.loop, stage.told)
    dispatch(Message(Assign(id=ID, epoch=1, model="m", credit=1), b""), 0, stage.loop, stage.told)
    assert [kind for kind, _, _ in stage.told.told] == ["load_failed", "failed"]
    assert not stage.loop.step()


def test_dispatch_counts_the_wait_into_deadline_and_first_token() -> None:
    """Time a request spent before the loop could take it in is part of its time."""
    stage = Stage()
    stage.engine.scripts["p"] = talk(2, takes_s=1.0)
    body = encode(Stop(epoch=1), GenerateBody(prompt="p"))[2]
    late = bytes(15) + b"x"
    for id, deadline_ms in ((ID, 60_000), (late, 4_000)):
        assign = Assign(id=id, epoch=1, model="m", credit=9, deadline_ms=deadline_ms)
        dispatch(Message(assign, body), 5.0, stage.loop, stage.told)
    stage.run()
    assert stage.told.results[ID].ttft_ms == pytest.approx(6000)
    assert stage.told.of(late) == [("failed", "deadline")]
