"""Request bodies into typed values, and the parameters that cannot be honoured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from ...protocol.errors import found_by_msgspec
from ...protocol.messages import Name
from .problem import bad, no_model, unsupported

S = TypeVar("S", bound=msgspec.Struct)


class Vendor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request field ``dflashd``: what only we have."""

    speculation: Literal["auto", "strict", "off"] = "auto"


def typed(data: bytes, type_: type[S]) -> S:
    """Decode a JSON body strictly. Raises Problem that names the field."""
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        what, field = found_by_msgspec(error)
        if what.startswith("Object contains unknown field"):
            name = what.split("`")[1]
            field = f"{field}.{name}" if field else name
            raise bad(f"{field}: this parameter is not known here", field) from error
        raise bad(f"{field}: {what}" if field else what, field or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"the body is not valid JSON: {error}") from error


Neutral = Mapping[str, tuple[tuple[object, ...], str]]
"""Parameter → the values that ask for nothing, and why others are refused."""


def refuse_unhonoured(request: msgspec.Struct, neutral: Neutral, where: str = "") -> None:
    """Raise Problem for a parameter that asks for something we do not do."""
    for name, (harmless, why) in neutral.items():
        value: Any = getattr(request, name)
        if value is not None and not any(value == each for each in harmless):
            raise unsupported(where + name, why)


def checked_model(model: str) -> str:
    """A name that may be a model's. Raises Problem for any other: there is no such model."""
    try:
        return msgspec.convert(model, Name)
    except msgspec.ValidationError as error:
        raise no_model(model) from error


def json_object(text: str, param: str) -> dict[str, Any]:
    """Text that must be a JSON object. Raises Problem."""
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad(f"{param}: not valid JSON", param) from error
    if not isinstance(value, dict):
        raise bad(f"{param}: not a JSON object", param)
    return value  # pyright: ignore[reportUnknownVariableType]


def one_of(param: str, *pairs: tuple[str, int | None]) -> int | None:
    """The one value of parameters that mean the same. Raises Problem when they differ."""
    given = {name: value for name, value in pairs if value is not None}
    if len(set(given.values())) > 1:
        raise bad(f"{' and '.join(given)} differ: give one of them", param)
    return next(iter(given.values()), None)
