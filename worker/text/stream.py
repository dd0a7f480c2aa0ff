"""Tokens into text while they come.

mlx-lm's own streaming detokenizer is not used: its byte-level form drops a space at the start of
the text and shows byte 0 as another character, and its general form decodes the whole line again
for every token. Neither knows stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from .stops import StopFinder

_REPLACEMENT = "\ufffd"
_HELD_TOKENS = 32
"""A character never takes more tokens than this: what is still unfinished then is invalid."""


class TextStream:
    """The text of a token sequence, in pieces that never split a character or a stop string.

    The pieces joined are ``tokenizer.decode`` of all tokens, up to the stop string, whatever the
    tokens' grouping into pushes. The end-of-text token is not pushed.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._decoder = _decoder(tokenizer)
        self._finder = StopFinder(stop)
        self.stopped: str | None = None
        """The stop string found; its text and all after it are not shown."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens make safe to show, possibly empty."""
        shown: list[str] = []
        for token in tokens:
            if self.stopped is not None:
                break
            shown.append(self._scan(self._decoder.push(token)))
        return "".join(shown)

    def finish(self) -> str:
        """The rest: nothing more will come, so what was held back is ordinary text."""
        if self.stopped is not None:
            return ""
        shown = self._scan(self._decoder.finish())
        return shown if self.stopped is not None else shown + self._finder.rest()

    def _scan(self, text: str) -> str:
        if not text:
            return ""
        shown, self.stopped = self._finder.feed(text)
        return shown


class _Decoder(Protocol):
    def push(self, token: int) -> str: ...
    def finish(self) -> str: ...


def _decoder(tokenizer: Any) -> _Decoder:
    kind = _ByteLevelDecoder if _is_byte_level(tokenizer) else _WindowDecoder
    return kind(tokenizer)


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"


class _ByteLevelDecoder:
    """For byte-level BPE each token is a run of bytes: exact, and one table look-up a token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        written = self._tokenizer.convert_ids_to_tokens(token)
        return self._utf8.decode(_token_bytes(written)) if written else ""

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """What a token writes by itself, perhaps part of a character."""
    written: str = tokenizer.convert_ids_to_tokens(token) or ""
    if _is_byte_level(tokenizer):
        return _token_bytes(written)
    if len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
        return bytes([int(written[3:5], 16)])  # a byte that no other token writes
    # What it adds behind itself: some decoders drop the space that a text begins with.
    once, twice = (
        tokenizer.decode([token] * times, clean_up_tokenization_spaces=False) for times in (1, 2)
    )
    return twice[len(once) :].encode()


def _byte_characters() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes as: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_characters()


def _token_bytes(written: str) -> bytes:
    """An added token may hold characters that stand for no byte: it is then meant literally."""
    try:
        return bytes([_BYTES[character] for character in written])
    except KeyError:
        return written.encode()


class _WindowDecoder:
    """For any other tokenizer: the difference that a token makes to the text of the last few.

    The tokens already shown stay in the window until the next are, because a tokenizer may
    treat the first token of a text differently (a leading space).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown_tokens = 0

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._text(self._window)
        held = len(self._window) - self._shown_tokens
        if text.endswith(_REPLACEMENT) and held < _HELD_TOKENS:
            return ""
        return self._show(text)

    def finish(self) -> str:
        return self._show(self._text(self._window))

    def _show(self, text: str) -> str:
        before = self._text(self._window[: self._shown_tokens])
        self._window = self._window[self._shown_tokens :]
        self._shown_tokens = len(self._window)
        return text[len(before) :]

    def _text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False) if tokens else ""
