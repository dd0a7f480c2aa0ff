"""Whatever arrives is read, or refused with exactly one typed error."""

from __future__ import annotations

import time
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from dflashd.protocol.codec import decode, decode_body, encode, kinds_of
from dflashd.protocol.envelope import BODY_LIMIT_BYTES, HEADER_LIMIT_BYTES, SIGNATURE
from dflashd.protocol.errors import DflashError, ErrorCode, Malformed, Stranger
from dflashd.protocol.messages import (
    BODY_OF,
    Body,
    Cancel,
    Chunk,
    Failed,
    FromClient,
    Generate,
    GenerateBody,
    Header,
    Hello,
    ToClient,
)

from .strategies import KINDS, UNIONS, bodies, headers

ID = bytes(range(16))
CODES = {ErrorCode.protocol, ErrorCode.unsupported, ErrorCode.bad_request}
BODY_TYPES = sorted(set(BODY_OF.values()), key=lambda type_: type_.__name__)
unions = st.sampled_from(sorted(UNIONS)).map(UNIONS.__getitem__)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
structures = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def packed(value: object) -> bytes:
    return cast("bytes", msgpack.packb(value))


def refusal(frames: list[bytes], kinds: Any) -> DflashError | None:
    """Return the one error ``frames`` are refused with, checked to be a proper one."""
    try:
        message = decode(frames, kinds)
    except (Malformed, Stranger) as error:
        check(error)
        return error
    assert isinstance(message.header, Header)
    return None


def check(error: DflashError) -> None:
    assert error.code in CODES
    assert 0 < len(error.message) <= 1000
    assert error.message.isprintable()
    assert decode(encode(Failed.of(error)), ToClient)


def body_refusal(type_: type[Body], data: bytes) -> DflashError | None:
    try:
        body = decode_body(type_, data)
    except Malformed as error:
        check(error)
        return error
    assert type(body) is type_
    return None


def header_refusal(raw: object, body: bytes = b"", kinds: Any = FromClient) -> Malformed:
    data = raw if isinstance(raw, bytes) else packed(raw)
    error = refusal([SIGNATURE, data, body], kinds)
    assert isinstance(error, Malformed)
    return error


@given(st.lists(st.binary(max_size=64), max_size=5), unions)
def test_random_frames(frames: list[bytes], kinds: Any) -> None:
    """Random frames give one typed error."""
    assert isinstance(refusal(frames, kinds), DflashError)


@given(st.binary(max_size=200), st.binary(max_size=40), unions)
def test_random_bytes_behind_our_signature(head: bytes, body: bytes, kinds: Any) -> None:
    """Random bytes in a true envelope give one typed error."""
    assert isinstance(refusal([SIGNATURE, head, body], kinds), Malformed)


@given(headers(), unions, st.data())
def test_damaged_headers(header: Header, kinds: Any, data: st.DataObject) -> None:
    """A header that was cut, or had bytes changed, is read or refused; nothing else happens."""
    frames = encode(header, b"\x80" if type(header) in BODY_OF else b"")
    head = bytearray(frames[1])
    for _ in range(data.draw(st.integers(0, 3))):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(head)))
    refusal([frames[0], bytes(head[:cut]), frames[2]], kinds)
    refusal([frames[0], bytes(head) + data.draw(st.binary(max_size=3)), frames[2]], kinds)


@given(headers(), st.data())
def test_truncated_headers_are_refused(header: Header, data: st.DataObject) -> None:
    """A header that lost its end is never read as something shorter."""
    frames = encode(header, b"\x80" if type(header) in BODY_OF else b"")
    cut = data.draw(st.integers(0, len(frames[1]) - 1))
    assert refusal([frames[0], frames[1][:cut], frames[2]], type(header)) is not None


@given(bodies(), st.data())
def test_damaged_bodies(body: Body, data: st.DataObject) -> None:
    """A damaged body is read or refused; a truncated one is always refused."""
    raw = bytearray(encode(Hello(), body)[2])
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert body_refusal(type(body), bytes(raw[:cut])) is not None
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    body_refusal(type(body), bytes(raw))


@given(st.sampled_from(KINDS), structures, st.data())
def test_wrong_types_in_a_header(kind: type[Header], value: Any, data: st.DataObject) -> None:
    """Any value in any field is read or refused."""
    fields = {name: data.draw(structures) for name in kind.__struct_fields__}
    raw = {"kind": kind.__struct_config__.tag, **fields, "extra": value}
    refusal([SIGNATURE, packed(raw), b""], kind)


@given(st.sampled_from(BODY_TYPES), st.data())
def test_wrong_types_in_a_body(type_: type[Body], data: st.DataObject) -> None:
    """Any value in any field is read or refused."""
    fields = {name: data.draw(structures) for name in type_.__struct_fields__}
    body_refusal(type_, packed(fields))


@given(structures)
def test_structures_that_are_not_messages(raw: Any) -> None:
    """Well-formed msgpack that is no message gives one typed error."""
    assert isinstance(refusal([SIGNATURE, packed(raw), b""], FromClient), Malformed)


@given(st.binary(max_size=12).filter(lambda frame: frame[:7] != b"DFLASHD"))
def test_foreign_signature_is_a_stranger(frame: bytes) -> None:
    """Whoever does not speak our protocol is told apart, to be dropped without an answer."""
    frames = encode(Cancel(id=ID))
    assert isinstance(refusal([frame, *frames[1:]], FromClient), Stranger)


@pytest.mark.parametrize("frame", [b"DFLASHD", b"DFLASHD\x01\x01", b"", b"DFLASHD\x01\x00"])
def test_signature_of_another_length_is_a_stranger(frame: bytes) -> None:
    """Only eight bytes are ours: what begins alike and ends otherwise is not another version."""
    frames = encode(Cancel(id=ID))
    assert isinstance(refusal([frame, *frames[1:]], FromClient), Stranger)


@given(st.integers(0, 255).filter(lambda version: version != 1))
def test_wrong_version_names_the_supported_one(version: int) -> None:
    """Another major version is 'unsupported' and the sentence names both versions."""
    frames = encode(Cancel(id=ID))
    error = refusal([b"DFLASHD" + bytes([version]), *frames[1:]], FromClient)
    assert isinstance(error, Malformed)
    assert error.code is ErrorCode.unsupported
    assert error.message == f"protocol version {version} is not supported; supported: 1"


@pytest.mark.parametrize("count", [1, 2, 4, 100])
def test_wrong_number_of_frames(count: int) -> None:
    """A message has three frames, and the error counts them."""
    frames = (encode(Cancel(id=ID)) * 40)[:count]
    error = refusal(frames, FromClient)
    assert error is not None
    assert f"not {count}" in error.message


def test_unknown_kind_names_the_supported_ones() -> None:
    """An unknown kind is 'unsupported', names every kind of this direction and keeps the id."""
    error = header_refusal({"kind": "teleport", "id": ID})
    assert error.code is ErrorCode.unsupported
    assert error.request_id == ID
    assert all(kind in error.message for kind in ("teleport", *kinds_of(FromClient)))


def test_wrong_direction_names_the_supported_ones() -> None:
    """A kind that goes the other way is a 'protocol' error that names what goes this way."""
    error = header_refusal({"kind": "chunk", "id": ID, "seq": 0, "epoch": 1})
    assert error.code is ErrorCode.protocol
    assert error.request_id == ID
    assert all(kind in error.message for kind in kinds_of(FromClient))


HEADER_REFUSALS: list[tuple[object, str, str]] = [
    ({}, "protocol", "field 'kind' is missing"),
    ({"kind": 3}, "protocol", "field 'kind' is not a string"),
    ([1], "protocol", "the header is not a map"),
    ({1: 2}, "protocol", "int is not allowed for map key"),
    ({"kind": "cancel"}, "bad_request", "cancel: .* required field `id`"),
    ({"kind": "cancel", "id": b"short"}, "bad_request", "cancel: field 'id'"),
    ({"kind": "cancel", "id": "A" * 24}, "bad_request", "cancel: field 'id'.*bytes"),
    ({"kind": "credit", "id": ID, "chunks": 65}, "bad_request", "'chunks': .*<= 64"),
    ({"kind": "credit", "id": ID, "chunks": 1.0}, "bad_request", "'chunks'"),
    ({"kind": "credit", "id": ID, "chunks": True}, "bad_request", "'chunks'"),
    ({"kind": "generate", "id": ID, "model": "../x"}, "bad_request", "field 'model'"),
    ({"kind": "generate", "id": ID, "model": "x\n"}, "bad_request", "field 'model'"),
    ({"kind": "\x1b[31m" * 9, "id": ID}, "unsupported", "unknown"),
    (packed({"kind": "cancel", "id": ID}) + b"\x00", "protocol", "extra data"),
    (b"\x81\xa4kind\xc7\x00\x05", "protocol", "extension type 5"),
    (b"\x81\xa4kind\xd6\xff\x00\x00\x00\x01", "protocol", "max_ext_len"),
    (b"\x81\xa4kind\xa2\xff\xff", "protocol", "utf-8"),
    (b"\x81\xa4kind\xdd\xff\xff\xff\xff", "protocol", "max_array_len"),
    (b"\x81\xa4kind" + b"\x91" * 9 + b"\x01", "protocol", "nests deeper than 8"),
    (b"\x91" * HEADER_LIMIT_BYTES, "protocol", "msgpack"),
    (b"\xc0" * (HEADER_LIMIT_BYTES + 1), "protocol", "16385 bytes; the limit is 16384"),
]


@pytest.mark.parametrize(("raw", "code", "sentence"), HEADER_REFUSALS)
def test_refusals_name_what_is_wrong(raw: Any, code: str, sentence: str) -> None:
    """A header is refused with a sentence that names the field or the limit."""
    error = header_refusal(raw)
    assert error.code == code
    with pytest.raises(DflashError, match=sentence):
        raise error


@pytest.mark.parametrize("depth", [9, 100, 500, 2000, 10000])
def test_deep_nesting_in_a_header_is_refused_or_skipped(depth: int) -> None:
    """Depth costs neither memory nor stack: unknown fields are skipped, or the header refused."""
    head = b"\x83\xa4kind\xa6cancel\xa2id\xc4\x10" + ID + b"\xa1x" + b"\x91" * depth + b"\xc0"
    error = refusal([SIGNATURE, head, b""], FromClient)
    assert error is None or error.code is ErrorCode.protocol


@pytest.mark.parametrize(
    ("data", "code", "sentence"),
    [
        (b"", "protocol", "GenerateBody is not valid msgpack"),
        (b"\x90", "protocol", "GenerateBody is not a map"),
        (b"\x80", "bad_request", "exactly one of prompt, messages, tokens"),
        ({"prompt": "x", "tokens": [1]}, "bad_request", "exactly one of"),
        ({"prompt": "x", "top_q": 1}, "bad_request", "unknown field `top_q`"),
        ({"prompt": "x", "sampling": {"top_p": 0.0}}, "bad_request", "'sampling.top_p'"),
        ({"prompt": "x", "sampling": {"temperature": float("nan")}}, "bad_request", "temperature"),
        ({"prompt": "x", "stop": ["a", ""]}, "bad_request", r"'stop\[1\]'"),
        ({"tokens": [1, 2**31]}, "bad_request", r"'tokens\[1\]'"),
        ({"tokens": []}, "bad_request", "'tokens'"),
        (b"\x81\xa6prompt" + b"\x91" * 9 + b"\x01", "protocol", "nests deeper than 8"),
        (b"\x81\xa6prompt\xdd\x7f\xff\xff\xff\x01", "protocol", "max_array_len"),
        (b"\x81\xa6prompt\xdf\x7f\xff\xff\xff\x01", "protocol", "max_map_len"),
        (b"\x81\xa6prompt\xdb\x7f\xff\xff\xff\x01", "protocol", "incomplete"),
    ],
)
def test_body_refusals_name_what_is_wrong(data: Any, code: str, sentence: str) -> None:
    """A body is refused with a sentence that names the field or the limit."""
    raw = data if isinstance(data, bytes) else packed(data)
    with pytest.raises(Malformed, match=sentence) as refused:
        decode_body(GenerateBody, raw)
    check(refused.value)
    assert refused.value.code == code


def test_oversize_body_is_refused_unread() -> None:
    """A body above its limit is refused by its size alone."""
    body = bytes(BODY_LIMIT_BYTES + 1)
    frames = encode(Generate(id=ID, model="m"), b"\x80")
    error = refusal([*frames[:2], body], FromClient)
    assert error is not None
    assert "33554433 bytes; the limit is 33554432" in error.message
    with pytest.raises(Malformed, match="33554433"):
        decode_body(GenerateBody, body)


def test_body_where_none_belongs_keeps_the_id() -> None:
    """A body on a kind without one is refused, and the error can be sent to its request."""
    frames = encode(Cancel(id=ID), b"\x80")
    error = refusal(frames, FromClient)
    assert isinstance(error, Malformed)
    assert error.request_id == ID
    assert error.message == "cancel: this kind has no body"


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 2000), st.sampled_from([b"\xdd\x00\x0f\xff\xff", b"\xdf\x00\x0f\xff\xff"]))
def test_claims_of_size_cost_nothing(depth: int, claim: bytes) -> None:
    """A few bytes that claim millions of items are refused in no time."""
    started = time.perf_counter()
    assert body_refusal(GenerateBody, claim * depth) is not None
    assert time.perf_counter() - started < 2


def test_refused_messages_say_nothing_of_the_stack() -> None:
    """The sentence is for a person: no traceback, no type of ours, no file."""
    error = header_refusal({"kind": "cancel"})
    assert "Traceback" not in error.message
    assert "msgspec" not in error.message


def test_chunk_of_unread_body_is_still_a_chunk() -> None:
    """The header alone decides: a relay never reads a body."""
    assert refusal(encode(Chunk(id=ID, seq=0, epoch=1), b"\xc1"), ToClient) is None


def test_what_is_too_large_is_not_sent() -> None:
    """A frame beyond its limit is refused where it is made; one of just the limit passes."""
    with pytest.raises(DflashError, match="the header is 20") as caught:
        encode(Failed(id=ID, code=ErrorCode.internal, message="x" * 20_000))
    assert caught.value.code is ErrorCode.bad_request
    largest = bytes(BODY_LIMIT_BYTES)
    with pytest.raises(DflashError, match="the body is 33554433 bytes"):
        encode(Hello(), largest + b"x")
    assert encode(Hello(), largest)[2] is largest
    refused = body_refusal(GenerateBody, largest)
    assert refused is not None
    assert "is not valid msgpack" in refused.message, "not for its size"
