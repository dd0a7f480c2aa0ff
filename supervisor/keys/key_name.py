"""Keys by their names, which end up in logs and on terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from ..errors import KeyRefused


class Named(Protocol):
    """A key, by its name."""

    @property
    def name(self) -> str: ...


K = TypeVar("K", bound=Named)

KeyName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


def checked_name(name: str) -> str:
    """The name, if it may be a key's. Raises KeyRefused."""
    try:
        return msgspec.convert(name, KeyName)
    except msgspec.ValidationError as error:
        raise KeyRefused(
            "a key's name is up to 64 letters, digits and ._@-, beginning with a letter or a digit"
        ) from error


def taken_out(keys: Sequence[K], name: str, what: str) -> tuple[K, tuple[K, ...]]:
    """The key of that name, and all others; ``what`` they are. Raises KeyRefused."""
    for key in keys:
        if key.name == name:
            return key, tuple(other for other in keys if other is not key)
    known = ", ".join(key.name for key in keys) or "none"
    raise KeyRefused(f"there is no {what} {name} (there are: {known})")
