"""Messages of the supervisor, as commands of the loop."""

from __future__ import annotations

from ...protocol.codec import Message, decode_body
from ...protocol.errors import DflashError
from ...protocol.messages import (
    AddCredit,
    Assign,
    Cancel,
    ClearCache,
    GenerateBody,
    Load,
    LoadBody,
    ReadCache,
    Stop,
    Unload,
)
from .effects import Effects
from .loop import Loop
from .request import Assignment

Command = Load | Unload | Assign | AddCredit | Cancel | ReadCache | ClearCache | Stop
"""Headers that are for the engine thread; the others are the I/O thread's own."""


def dispatch(message: Message, waited_s: float, loop: Loop, effects: Effects) -> None:
    """Carry out a message that arrived ``waited_s`` ago. A body that cannot be read is answered."""
    match message.header:
        case Assign() as assign:
            _assign(assign, message.body, waited_s, loop, effects)
        case AddCredit(id=id, chunks=chunks):
            loop.add_credit(id, chunks)
        case Cancel(id=id):
            loop.cancel(id)
        case Load(model=model):
            try:
                loop.load(model, decode_body(LoadBody, message.body))
            except DflashError as error:
                effects.load_failed(model, error)
        case Unload(model=model):
            loop.unload(model)
        case ReadCache(id=id, model=model):
            loop.read_cache(id, model)
        case ClearCache(id=id, model=model):
            loop.read_cache(id, model, clear=True)
        case Stop():
            loop.stop()
        case other:
            raise TypeError(f"{type(other).__name__} is no command")


def _assign(assign: Assign, body: bytes, waited_s: float, loop: Loop, effects: Effects) -> None:
    try:
        asked = decode_body(GenerateBody, body)
    except DflashError as error:
        effects.failed(assign.id, error)
        return
    deadline_ms = assign.deadline_ms
    loop.assign(
        Assignment(
            id=assign.id,
            model=assign.model,
            body=asked,
            credit=assign.credit,
            deadline_s=None if deadline_ms is None else deadline_ms / 1000,
            queued_ms=assign.queued_ms,
            load_ms=assign.load_ms,
            waited_s=waited_s,
        )
    )
