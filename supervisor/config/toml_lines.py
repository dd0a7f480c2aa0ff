"""On which line of a TOML text a key stands: tomllib reads values and forgets their places."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import cast

_SECTION = re.compile(r"\s*\[([^\[\]].*)\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*([^=#]+?)\s*=")


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line, counted from 1, of the key ``path`` or else of the nearest table around it."""
    wanted = tuple(path)
    best: tuple[int, int] | None = None
    for number, found in places(text):
        depth = min(len(found), len(wanted))
        if found[:depth] == wanted[:depth] and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None


def places(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every line that holds a section's head or a key, with its path."""
    section: tuple[str, ...] = ()
    certain = not any(quotes in text for quotes in ('"""', "'''"))
    for number, line in enumerate(text.split("\n"), start=1):
        head, key = _SECTION.fullmatch(line), _KEY.match(line)
        path = names(head[1]) if head else names(key[1]) if key else ()
        if not path or not (certain or is_outside_of_strings(text, number)):
            continue
        section, path = (path, path) if head else (section, (*section, *path))
        yield number, path


def names(written: str) -> tuple[str, ...]:
    """The parts of a dotted key as it is written, quotes resolved; empty if it is none."""
    try:
        table: object = tomllib.loads(f"{written} = 0")
    except ValueError:
        return ()
    path: list[str] = []
    while isinstance(table, dict):
        key, table = next(iter(cast("dict[str, object]", table).items()))
        path.append(key)
    return tuple(path)


def is_outside_of_strings(text: str, number: int) -> bool:
    """Whether line ``number`` does not lie inside a value of several lines."""
    before = "\n".join(text.split("\n")[: number - 1])
    try:
        _ = tomllib.loads(before)
    except ValueError:
        return False
    return True
