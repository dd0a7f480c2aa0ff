"""The field types that messages are made of, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

WINDOW_CHUNKS = 64
"""Chunks a sender may have in flight before it needs new credit."""

RequestId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""128 random bits, chosen by the client."""

# The lookahead keeps a final newline out, which a bare $ lets through.
_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$(?!\n)"
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=_NAME_PATTERN)]
"""A configured model or worker name."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Epoch = Annotated[int, Meta(ge=1, le=2**53)]
Credit = Annotated[int, Meta(ge=1, le=WINDOW_CHUNKS)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]

Token = Annotated[int, Meta(ge=0, lt=2**31)]
Sentence = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=16 * 2**20)]
