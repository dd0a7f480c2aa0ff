"""What is sent is what is read."""

from __future__ import annotations

from typing import cast, get_args

import msgpack
import pytest
from hypothesis import given, strategies as st

from dflashd.protocol.codec import decode, decode_body, encode, kinds_of
from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    BODY_MAY_BE_EMPTY,
    BODY_OF,
    WINDOW_CHUNKS,
    Body,
    Chunk,
    ChunkBody,
    Failed,
    Generate,
    GenerateBody,
    Header,
    Hello,
    Report,
    ToClient,
)

from .examples import BODIES, HEADERS
from .strategies import UNIONS, bodies, headers

ID = bytes(16)


@given(headers())
def test_any_valid_header_reads_back_equal(header: Header) -> None:
    """Encoding then decoding gives the same header, in every direction that has its kind."""
    body = b"\x80" if type(header) in BODY_OF else b""
    for union in UNIONS.values():
        if type(header) in get_args(union):
            message = decode(encode(header, body), union)
            assert message.header == header
            assert message.body == body


@given(bodies())
def test_any_valid_body_reads_back_equal(body: Body) -> None:
    """Encoding then decoding gives the same body."""
    frames = encode(Hello(), body)
    assert decode_body(type(body), frames[2]) == body


def test_encoded_body_is_passed_on_untouched() -> None:
    """A relay hands on the body it got, byte for byte, readable or not."""
    data = b"\xc1 not msgpack at all"
    frames = encode(Chunk(id=ID, seq=0, epoch=1), data)
    assert frames[2] is data
    assert decode(frames, ToClient).body is data


def test_unknown_header_fields_are_ignored() -> None:
    """A newer peer may add optional header fields of any type."""
    frames = encode(Chunk(id=ID, seq=0, epoch=1), b"\x80")
    assert frames[1][0] == 0x84
    added = b"\x85" + frames[1][1:] + b"\xa5extra" + b"\x81\xa1x\x92\x01\xc3"
    assert decode([frames[0], added, frames[2]], ToClient).header == Chunk(id=ID, seq=0, epoch=1)


def test_defaults_are_not_sent() -> None:
    """A field left at its default stays out, so an older peer cannot stumble over it."""
    assert b"credit" not in encode(Generate(id=ID, model="m", credit=WINDOW_CHUNKS))[1]
    assert encode(Hello(), GenerateBody(prompt="x"))[2] == b"\x81\xa6prompt\xa1x"


@pytest.mark.parametrize("kind", list(BODY_OF))
def test_body_of_a_kind_cannot_be_left_out(kind: type[Header]) -> None:
    """A kind that carries a body is refused without, unless the protocol says it may be empty."""
    header = next(header for header in HEADERS.values() if type(header) is kind)
    if kind in BODY_MAY_BE_EMPTY:
        assert decode(encode(header), kind).body == b""
    else:
        with pytest.raises(DflashError, match="the body is missing") as refused:
            decode(encode(header), kind)
        assert refused.value.code is ErrorCode.protocol


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (GenerateBody(prompt="\ud800"), "UTF-8"),
        (GenerateBody(prompt="x", max_tokens=2**70), "64 bits"),
        (GenerateBody(prompt=object()), "cannot be sent"),  # pyright: ignore[reportArgumentType]
        (ChunkBody(tokens=(), text="x" * (33 * 2**20)), "the limit is 33554432"),
    ],
)
def test_what_cannot_be_sent_is_a_bad_request(body: Body, sentence: str) -> None:
    """A value that has no encoding within the limits is refused where it is sent."""
    with pytest.raises(DflashError, match=sentence) as refused:
        encode(Hello(), body)
    assert refused.value.code is ErrorCode.bad_request


@given(st.text(max_size=6000), st.sampled_from(ErrorCode), st.booleans())
def test_any_error_fits_into_a_failed(text: str, code: ErrorCode, retryable: bool) -> None:
    """However long its sentence, an error can be sent, and arrives as the same error."""
    error = DflashError(code, text, retryable=retryable)
    message = decode(encode(Failed.of(error, ID)), ToClient).header
    assert isinstance(message, Failed)
    back = message.error()
    assert (back.code, back.retryable) == (code, retryable)
    assert text.encode().startswith(back.message.encode())
    assert back.message == text or len(back.message.encode()) > 4090


def test_failed_can_carry_text_that_is_not_utf8() -> None:
    """A lone surrogate in a sentence (a strange file name) cannot keep an error from arriving."""
    error = DflashError(ErrorCode.not_found, "no file \udcff" + "€" * 5000)
    assert isinstance(decode(encode(Failed.of(error)), ToClient).header, Failed)


def test_kinds_of_names_a_direction() -> None:
    """The names of a direction's kinds can be asked for."""
    assert kinds_of(ToClient) == (
        "accepted", "cache_state", "chunk", "done", "event", "failed", "happened", "log_part",
            "measured", "reloaded", "snapshot", "welcome",
    )  # fmt: skip


@pytest.mark.parametrize("type_", list(dict.fromkeys(BODY_OF.values())))
def test_unknown_body_fields_are_refused_only_where_they_ask(type_: type[Body]) -> None:
    """A newer peer may tell more, in reports; what it asks and we do not know is an error."""
    body = next(body for body in BODIES.values() if type(body) is type_)
    fields = cast("dict[str, object]", msgpack.unpackb(encode(Hello(), body)[2]))
    more = cast("bytes", msgpack.packb({**fields, "extra": 1}))
    if issubclass(type_, Report):
        assert decode_body(type_, more) == body
    else:
        with pytest.raises(DflashError, match="unknown field `extra`"):
            decode_body(type_, more)
