"""What the daemon tells one who watches it: events, and pieces of a log."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable

from msgspec import Struct

from .codec import Message, decode_body
from .messages import EventBody, LogBody, LogPart


class LogText(Struct, frozen=True, kw_only=True):
    """The next piece of a log; ``missed_bytes`` before it were gone before they could be read."""

    text: str
    missed_bytes: int = 0


def read_event(message: Message) -> EventBody:
    """The event in a message."""
    return decode_body(EventBody, message.body)


def log_reader() -> Callable[[Message], LogText | None]:
    """A reader of one log's parts in order: a character may be spread over two of them."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")

    def read(message: Message) -> LogText | None:
        missed = message.header.missed if isinstance(message.header, LogPart) else 0
        text = decoder.decode(decode_body(LogBody, message.body).data)
        return LogText(text=text, missed_bytes=missed) if text or missed else None

    return read
