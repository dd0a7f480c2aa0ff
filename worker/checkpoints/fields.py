"""A model folder's raw JSON configuration, in which any field may hold anything, read as types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...protocol.errors import DflashError, ErrorCode

Number = TypeVar("Number", int, float)

MOST = 2**31 - 1
_SHOWN_CHARACTERS = 80


class Fields:
    """Fields of one or more JSON objects: the first that has a key wins, null counts as absent.

    Every reader raises KeyError(key) for a required field that is absent and ValueError with a
    sentence for one that is not what it must be.
    """

    def __init__(self, *levels: Mapping[str, Any]) -> None:
        self._levels = levels

    def raw(self, key: str) -> Any:
        """The field as it stands, or None."""
        found = (level.get(key) for level in self._levels)
        return next((value for value in found if value is not None), None)

    def whole(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        """An integer from ``least`` to ``most``; required without a ``default``."""
        value = self.raw(key)
        if value is None:
            return _given(key, default)
        if type(value) is not int or not least <= value <= most:
            raise _unusable(key, f"a whole number from {least} to {most}", value)
        return value

    def number(self, key: str, default: float | None = None, *, positive: bool = False) -> float:
        """A finite number; required without a ``default``."""
        value = self.raw(key)
        if value is None:
            return _given(key, default)
        if type(value) not in (int, float) or not _finite(value) or (positive and value <= 0):
            raise _unusable(key, "a positive number" if positive else "a number", value)
        return float(value)

    def flag(self, key: str) -> bool | None:
        """A truth value, or None where the field is absent."""
        value = self.raw(key)
        if value is not None and type(value) is not bool:
            raise _unusable(key, "true or false", value)
        return value

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of integers from 0; empty where the field is absent."""
        value: Any = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v <= MOST for v in value):
            raise _unusable(key, f"a list of whole numbers from 0 to {MOST}", value)
        return tuple(value)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where the field is absent."""
        value: Any = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _unusable(key, "a list of strings", value)
        return tuple(value)

    def section(self, key: str) -> dict[str, Any]:
        """A JSON object; empty where the field is absent."""
        value: Any = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _unusable(key, "a JSON object", value)
        return value


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's ``config.json``.

    Raises:
        DflashError: not_found when there is none, load_failed when it is not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DflashError(
            ErrorCode.not_found, f"{folder} has no config.json: it is not a model folder"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DflashError(ErrorCode.load_failed, f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DflashError(ErrorCode.load_failed, f"{path} is not a JSON object")
    return config  # pyright: ignore[reportUnknownVariableType]


def text_fields(config: dict[str, Any]) -> Fields:
    """The text model's fields, which multimodal models keep one level down, all or some of them.

    Raises ValueError with a sentence.
    """
    return Fields(Fields(config).section("text_config"), config)


def shown(value: object) -> str:
    """``value`` for a sentence, never long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _given(key: str, default: Number | None) -> Number:
    if default is None:
        raise KeyError(key)
    return default


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _unusable(key: str, wanted: str, value: object) -> ValueError:
    return ValueError(f"{key} must be {wanted}, it is {shown(value)}")
