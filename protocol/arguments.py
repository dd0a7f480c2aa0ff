"""What a caller may give: every argument is looked at before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from .errors import DflashError, ErrorCode, found_by_msgspec

_END_S = 2**31 / 1000
"""Milliseconds travel in 31 bits; operating systems wait no longer either."""

Seconds = Annotated[float, Meta(ge=0, lt=_END_S)]
"""A time to wait, perhaps none."""

Patience = Annotated[float, Meta(gt=0, lt=_END_S)]
"""A time that something may take."""


def checked(what: str, given: object, kind: Any) -> Any:
    """``given`` as a value of ``kind``, a type that msgspec knows; numbers in texts are texts.

    Raises DflashError(bad_request) that names the place in ``what``, and what belongs there.
    """
    try:
        return msgspec.convert(_plain(given), kind)
    except (ValueError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
        problem, path = found_by_msgspec(error)
        place = f"{what}, {path}" if what and path else what or path
        raise DflashError(
            ErrorCode.bad_request, f"{place}: {problem}" if place else problem
        ) from error


def checked_call(what: str, given: object) -> None:
    """Raise DflashError(bad_request) unless ``given`` can be called."""
    if not isinstance(given, Callable):
        kind = type(given).__name__
        raise DflashError(ErrorCode.bad_request, f"{what}: Expected a function, got `{kind}`")


def _plain(given: object, path: str = "$") -> object:
    """As it would be read from the wire, where any sequence is an array. Raises ValueError."""
    try:
        return msgspec.to_builtins(given, builtin_types=_BYTES)
    except TypeError:
        pass  # something in it cannot be given, or is a sequence that msgspec does not know
    for plain in (str, float, int):
        if isinstance(given, plain):  # of a subclass
            return plain(given)
    if isinstance(given, Mapping):
        entries = cast("Mapping[object, object]", given).items()
        return {key: _plain(value, f"{path}.{key}") for key, value in entries}
    if isinstance(given, Sequence):
        return [_plain(item, path) for item in cast("Sequence[object]", given)]
    raise ValueError(f"a value of type `{type(given).__name__}` cannot be sent - at `{path}`")


_BYTES = (bytes, bytearray, memoryview)
"""Never text: msgspec would make base64 of them."""
