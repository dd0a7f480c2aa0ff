"""The bytes of every message, as committed in golden.txt."""

from __future__ import annotations

import pytest

from dflashd.protocol.codec import decode, decode_body
from dflashd.protocol.envelope import SIGNATURE
from dflashd.protocol.messages import BODY_MAY_BE_EMPTY, BODY_OF, Body, Header

from .examples import BODIES, HEADERS
from .golden import TABLE, encoded, frames, printed
from .strategies import KINDS

GOLDEN = frames()


def test_table_is_what_the_code_prints() -> None:
    """The readable table is complete and current, comments of bytes included."""
    assert TABLE.read_text(encoding="utf-8") == printed()


@pytest.mark.parametrize("name", HEADERS)
def test_header_is_sent_and_read_as_golden(name: str) -> None:
    """A header of each kind has exactly the golden bytes, and they read back as that header."""
    header = HEADERS[name]
    assert encoded(header) == GOLDEN[name]
    needs_body = type(header) in BODY_OF and type(header) not in BODY_MAY_BE_EMPTY
    message = decode([SIGNATURE, GOLDEN[name], b"\x80" if needs_body else b""], type(header))
    assert message.header == header


@pytest.mark.parametrize("name", BODIES)
def test_body_is_sent_and_read_as_golden(name: str) -> None:
    """Each body has exactly the golden bytes, and they read back as that body."""
    body = BODIES[name]
    assert encoded(body) == GOLDEN[name]
    assert decode_body(type(body), GOLDEN[name]) == body


def test_no_message_is_missing_from_the_table() -> None:
    """Every kind and every body type that travels has at least one entry."""
    headers: set[type[Header]] = {type(header) for header in HEADERS.values()}
    bodies: set[type[Body]] = {type(body) for body in BODIES.values()}
    assert headers == set(KINDS)
    assert bodies == set(BODY_OF.values())


def test_every_field_is_set_somewhere_in_the_table() -> None:
    """No field can change its name or type unseen: each appears in some golden entry."""
    by_type: dict[type[Header | Body], list[str]] = {}
    for name, value in {**HEADERS, **BODIES}.items():
        by_type.setdefault(type(value), []).append(name)
    for type_, names in by_type.items():
        for field in type_.__struct_fields__:
            key = bytes([0xA0 + len(field)]) + field.encode()
            assert any(key in GOLDEN[name] for name in names), f"{type_.__name__}.{field}"
