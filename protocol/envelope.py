"""The three frames around every message: signature, header, body; and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from .errors import ErrorCode, Malformed, Stranger

MAGIC = b"DFLASHD"
MAJOR = 1
SIGNATURE = MAGIC + bytes([MAJOR])
"""Frame 0 of every message."""

HEADER_LIMIT_BYTES = 16 * 1024
BODY_LIMIT_BYTES = 32 * 1024 * 1024


def open_envelope(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the header and body frames, still encoded.

    Raises :class:`Stranger` for a foreign signature, :class:`Malformed` for anything else wrong.
    """
    if not frames or frames[0] != SIGNATURE:
        _refuse_signature(frames[0] if frames else b"")
    if len(frames) != 3:
        sentence = f"a message has 3 frames (signature, header, body), not {len(frames)}"
        raise Malformed(ErrorCode.protocol, sentence)
    _, header, body = frames
    if len(header) > HEADER_LIMIT_BYTES or len(body) > BODY_LIMIT_BYTES:
        raise Malformed(ErrorCode.protocol, size_sentence(len(header), len(body)))
    return header, body


def _refuse_signature(frame: bytes) -> NoReturn:
    if len(frame) != len(SIGNATURE) or not frame.startswith(MAGIC):
        raise Stranger(ErrorCode.protocol, "frame 0 is not the signature of dflashd")
    sentence = f"protocol version {frame[-1]} is not supported; supported: {MAJOR}"
    raise Malformed(ErrorCode.unsupported, sentence)


def size_sentence(header_bytes: int, body_bytes: int) -> str:
    """Say which frame is too large, and by which limit."""
    if header_bytes > HEADER_LIMIT_BYTES:
        return f"the header is {header_bytes} bytes; the limit is {HEADER_LIMIT_BYTES}"
    return f"the body is {body_bytes} bytes; the limit is {BODY_LIMIT_BYTES}"
