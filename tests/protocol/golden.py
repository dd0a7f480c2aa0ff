"""The golden table: every message, readable and as bytes.

``python -m tests.protocol.golden`` prints it anew. A line that changes breaks the wire: only
additions are compatible.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import cast

import msgpack

from dflashd.protocol.codec import encode
from dflashd.protocol.messages import Body, Header, Hello

from .examples import BODIES, HEADERS

TABLE = Path(__file__).with_name("golden.txt")
DUMMY = Hello()


def encoded(value: Header | Body) -> bytes:
    """Return the frame that carries ``value``."""
    return encode(value)[1] if isinstance(value, Header) else encode(DUMMY, value)[2]


def readable(frame: bytes) -> str:
    """Return a frame's content for people; bytes as 0x…"""
    return _text(cast("object", msgpack.unpackb(frame)))


def _text(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f"{key}: {_text(inner)}" for key, inner in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(inner) for inner in value) + "]"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return f"0x{value.hex()}" if isinstance(value, bytes) else repr(value)


def printed() -> str:
    """Return the whole table as the code makes it now."""
    entries: list[str] = []
    for name, value in {**HEADERS, **BODIES}.items():
        frame = encoded(value)
        lines = [
            name,
            *textwrap.wrap(readable(frame), 94, initial_indent="    ", subsequent_indent="      "),
            *textwrap.wrap(frame.hex(" "), 90, initial_indent="    = ", subsequent_indent="      "),
        ]
        entries.append("\n".join(lines) + "\n")
    return "\n".join(entries)


def frames() -> dict[str, bytes]:
    """Return the bytes of the committed table by name."""
    found: dict[str, bytes] = {}
    for entry in TABLE.read_text(encoding="utf-8").strip().split("\n\n"):
        name, rest = entry.split("\n", 1)
        found[name] = bytes.fromhex(rest.rsplit("    = ", 1)[1])
    return found


if __name__ == "__main__":
    print(printed(), end="")  # noqa: T201 - this is its purpose
