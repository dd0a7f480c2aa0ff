"""Stop strings found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Scan(NamedTuple):
    """What :meth:`StopFinder.feed` says: text that may be shown, and the stop string found."""

    text: str
    stopped: str | None


class StopFinder:
    """Holds back what may be the beginning of a stop string; linear in the text's length.

    The stop string that *ends* first wins, the longest if several end there. So the result does
    not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str) -> Scan:
        """Take more text; after a stop nothing more may be fed."""
        if not self._patterns:
            return Scan(text, None)
        pending = self._held + text
        for at, character in enumerate(text, start=len(self._held) + 1):
            ended = [pattern.text for pattern in self._patterns if pattern.step(character)]
            if ended:
                self._held = ""
                return Scan(pending[: at - len(ended[0])], ended[0])
        held = max(pattern.matched for pattern in self._patterns)
        shown = pending[: len(pending) - held]
        self._held = pending[len(shown) :]
        return Scan(shown, None)

    def rest(self) -> str:
        """What was held back and turned out to be ordinary text, at the end."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """One stop string, matched character by character (Knuth, Morris and Pratt)."""

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0  # characters of the pattern that the text seen so far ends with
        self._borders = [0] * len(text)
        for at in range(1, len(text)):
            border = self._borders[at - 1]
            while border and text[at] != text[border]:
                border = self._borders[border - 1]
            self._borders[at] = border + (text[at] == text[border])

    def step(self, character: str) -> bool:
        """True if the pattern ends with this character."""
        while self.matched and (
            self.matched == len(self.text) or self.text[self.matched] != character
        ):
            self.matched = self._borders[self.matched - 1]
        if self.text[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.text)
