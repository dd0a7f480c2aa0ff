"""One iteration over what comes bit by bit; leaving it early ends what it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Reading(Generic[T]):
    """Gives what ``take`` gives, until that is None; ``abandon`` is called when it is dropped.

    ``owner`` lives as long: a loop over a temporary must not drop what it reads from.
    """

    def __init__(
        self, owner: object, take: Callable[[], T | None], abandon: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._take = take
        self._abandon = abandon

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        item = self._take()
        if item is None:
            raise StopIteration
        return item

    def __del__(self) -> None:
        # A loop holds the only reference: this runs as soon as it is left.
        self._abandon()
