"""Typed messages to frames and back: msgpack with every limit set, then strict validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from types import UnionType
from typing import NoReturn, TypeVar, cast, get_args

import msgpack
import msgspec

from .envelope import (
    BODY_LIMIT_BYTES,
    HEADER_LIMIT_BYTES,
    SIGNATURE,
    open_envelope,
    size_sentence,
)
from .errors import DflashError, ErrorCode, Malformed, found_by_msgspec
from .messages import (
    BODY_MAY_BE_EMPTY,
    BODY_OF,
    Body,
    FromClient,
    FromControl,
    FromWorker,
    Header,
    ToClient,
    ToWorker,
)

NESTING_LIMIT = 8
"""Containers inside containers, the outermost map included."""

_HEADER_ITEMS_LIMIT = 64
_BODY_ITEMS_LIMIT = 2**20
_SENTENCE_LIMIT = 300

Kinds = UnionType | type[Header]
"""A union of header types, such as ``FromClient``, or one of them."""

B = TypeVar("B", bound=Body)


class Message(msgspec.Struct, frozen=True):
    """A decoded header with its body frame, which stays encoded until someone needs it."""

    header: Header
    body: bytes


_encode = msgspec.msgpack.Encoder().encode


def encode(header: Header, body: Body | bytes | None = None) -> list[bytes]:
    """Return the three frames of a message; an encoded ``body`` is passed on as it is.

    Raises DflashError(bad_request) when a frame would exceed its limit or a text is not text.
    """
    try:
        head = _encode(header)
        tail = body if isinstance(body, bytes) else b"" if body is None else _encode(body)
    except UnicodeEncodeError as error:
        raise DflashError(
            ErrorCode.bad_request, "a text is not Unicode: it holds bytes that are not UTF-8"
        ) from error
    except TypeError as error:
        raise DflashError(ErrorCode.bad_request, f"a value cannot be sent: {error}") from error
    except OverflowError as error:
        raise DflashError(
            ErrorCode.bad_request, "a number is too large to be sent: the limit is 64 bits"
        ) from error
    if len(head) > HEADER_LIMIT_BYTES or len(tail) > BODY_LIMIT_BYTES:
        raise DflashError(ErrorCode.bad_request, size_sentence(len(head), len(tail)))
    return [SIGNATURE, head, tail]


def encode_question(header: Header, body: Body | None = None) -> list[bytes]:
    """The same, read once as the daemon will: what it would refuse is refused here.

    Raises DflashError(bad_request) that names the field.
    """
    frames = encode(header, body)
    _ = decode(frames, type(header))
    if body is not None:
        _ = decode_body(type(body), frames[2])
    return frames


def decode(frames: Sequence[bytes], kinds: Kinds) -> Message:
    """Read one message whose header is in the union ``kinds``, such as ``FromClient``.

    Raises :class:`Stranger` for a foreign signature and :class:`Malformed` for anything else:
    ``unsupported`` (version, kind), ``protocol`` (structure), ``bad_request`` (a field).
    """
    head, body = open_envelope(frames)
    try:
        # Typed decoding skips unknown fields without building them: nothing to bound but size.
        header = _decoder(kinds).decode(head)
    except (msgspec.DecodeError, RecursionError) as error:
        _refuse_header(head, kinds, error)
    kind = type(header)
    if kind in BODY_OF:
        if not body and kind not in BODY_MAY_BE_EMPTY:
            _refuse_body(header, "the body is missing")
    elif body:
        _refuse_body(header, "this kind has no body")
    return Message(header, body)


def decode_body(type_: type[B], data: bytes) -> B:
    """Read a body frame. Raises :class:`Malformed` (``protocol`` or ``bad_request``)."""
    name = type_.__name__
    if len(data) > BODY_LIMIT_BYTES:
        raise Malformed(ErrorCode.protocol, size_sentence(0, len(data)))
    # An array cannot have more items than the frame has bytes: a claim costs its own weight.
    items_limit = min(_BODY_ITEMS_LIMIT, len(data))
    raw = _read_map(data, name, items_limit)
    try:
        return msgspec.convert(raw, type_)
    except msgspec.ValidationError as error:
        raise Malformed(ErrorCode.bad_request, _field_sentence(name, error)) from error


def kinds_of(kinds: Kinds) -> tuple[str, ...]:
    """Return the names of the kinds in a union of header types, sorted."""
    return tuple(sorted(_types_by_kind(kinds)))


def _refuse_extension(code: int, _data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not allowed")


_unpackb = partial(
    cast("Callable[..., object]", msgpack.unpackb),
    raw=False,
    strict_map_key=True,
    max_ext_len=0,
    ext_hook=_refuse_extension,
)


def _read_map(data: bytes, what: str, items_limit: int) -> dict[str, object]:
    size = len(data)
    try:
        raw = _unpackb(
            data,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=items_limit,
            max_map_len=items_limit,
        )
    except (msgpack.UnpackException, ValueError) as error:
        reason = _printable(str(error)) or "it is malformed"
        raise Malformed(ErrorCode.protocol, f"{what} is not valid msgpack: {reason}") from error
    if not isinstance(raw, dict):
        raise Malformed(ErrorCode.protocol, f"{what} is not a map")
    mapping = cast("dict[str, object]", raw)
    if _nests_deeper(mapping.values(), NESTING_LIMIT - 1):
        sentence = f"{what} nests deeper than {NESTING_LIMIT} levels"
        raise Malformed(ErrorCode.protocol, sentence, _readable_id(mapping))
    return mapping


def _nests_deeper(values: Iterable[object], levels: int) -> bool:
    for value in values:
        if type(value) is dict or type(value) is list:
            inner = cast("dict[object, object] | list[object]", value)
            items = inner.values() if isinstance(inner, dict) else inner
            if levels == 0 or _nests_deeper(items, levels - 1):
                return True
    return False


@cache
def _decoder(kinds: Kinds) -> msgspec.msgpack.Decoder[Header]:
    return msgspec.msgpack.Decoder(kinds)


@cache
def _types_by_kind(kinds: Kinds) -> dict[str, type[Header]]:
    types: tuple[type[Header], ...] = (kinds,) if isinstance(kinds, type) else get_args(kinds)
    return {str(type_.__struct_config__.tag): type_ for type_ in types}


_ALL_KINDS = FromClient | FromControl | ToClient | FromWorker | ToWorker


def _refuse_header(head: bytes, kinds: Kinds, error: Exception) -> NoReturn:
    """Read a header that typed decoding refused once more, slowly, to say what is wrong."""
    raw = _read_map(head, "the header", _HEADER_ITEMS_LIMIT)
    request_id = _readable_id(raw)
    kind = raw.get("kind")
    if not isinstance(kind, str):
        problem = "is missing" if kind is None else "is not a string"
        sentence = f"the header's field 'kind' {problem}"
        raise Malformed(ErrorCode.protocol, sentence, request_id) from error
    supported = _types_by_kind(kinds)
    if kind in supported:
        sentence = _field_sentence(kind, error)
        raise Malformed(ErrorCode.bad_request, sentence, request_id) from error
    here = f"supported here: {', '.join(supported)}"
    if kind in _types_by_kind(_ALL_KINDS):
        sentence = f"kind '{kind}' does not go in this direction; {here}"
        raise Malformed(ErrorCode.protocol, sentence, request_id) from error
    sentence = f"kind '{_printable(kind[:64])}' is unknown; {here}"
    raise Malformed(ErrorCode.unsupported, sentence, request_id) from error


def _refuse_body(header: Header, problem: str) -> NoReturn:
    kind = header.__struct_config__.tag
    request_id: bytes | None = getattr(header, "id", None)
    raise Malformed(ErrorCode.protocol, f"{kind}: {problem}", request_id)


def _readable_id(raw: dict[str, object]) -> bytes | None:
    value = raw.get("id")
    return value if isinstance(value, bytes) and len(value) == 16 else None


def _field_sentence(what: str, error: Exception) -> str:
    problem, field = map(_printable, found_by_msgspec(error))
    return f"{what}: field '{field}': {problem}" if field else f"{what}: {problem}"


def _printable(text: str) -> str:
    # What a stranger wrote ends up in logs and terminals.
    return "".join(c if c.isprintable() else "?" for c in text[:_SENTENCE_LIMIT])
