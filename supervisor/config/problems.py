"""What is wrong with a configuration: every unknown key, wrong value and missing key, by place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from .configuration import Config
from .http_section import packages_missing

Path = tuple[str, ...]

SHOWN_KEYS = 12
"""A longer list of keys is read in the annotated example."""

SHOWN_CHARACTERS = 60

_TYPE = re.compile("`([^`]+)`")
_IN_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
}

NO_NAME = (
    "is no usable name: up to 128 letters, digits and ._:/-, beginning with a letter or a digit"
)


class Problem(Struct, frozen=True):
    """Something wrong with the key or table at ``path``."""

    path: Path
    what: str

    @property
    def sentence(self) -> str:
        """Section, key and what is wrong."""
        *section, key = self.path
        place = f"[{'.'.join(section)}]" if section else "top level:"
        return f"{place} {key} {self.what}"


def problems_of(raw: Mapping[str, object], type_: type[Struct]) -> Iterator[Problem]:
    """All problems of a file's tables, each for itself."""
    yield from table_problems(raw, type_, ())


def problems_between(config: Config) -> Iterator[Problem]:
    """What is wrong between tables that are right each for itself."""
    for name, model in config.models.items():
        # To `spawn --group` a model's name means a worker of its own.
        if model.group in config.models:
            what = f"must not be the name of a model, got '{model.group}'"
            yield Problem(("models", name, "group"), what)
    if config.http is not None and (config.http.tls_certificate is None) != (
        config.http.tls_key is None
    ):
        yield Problem(("http", "tls_certificate"), "and tls_key go together: give both or neither")
    if config.tcp is not None and config.tcp.insecure_loopback and config.tcp.outside:
        what = f"is for the loopback only, and {config.tcp.outside[0]} is not: use keys there"
        yield Problem(("tcp", "insecure_loopback"), what)
    if config.http is not None and (missing := packages_missing()):
        what = f"needs {', '.join(missing)}: pip install 'dflashd[http]'"
        yield Problem(("http",), what)


def table_problems(
    table: Mapping[str, object], type_: type[Struct], path: Path
) -> Iterator[Problem]:
    """The problems of one table and those inside it."""
    fields = {field.encode_name: field for field in structs.fields(type_)}
    for key, value in table.items():
        if key in fields:
            yield from value_problems(value, fields[key].type, (*path, key))
        else:
            yield Problem((*path, key), f"is not a known key; {hint(key, list(fields))}")
    for name, field in fields.items():
        if field.required and name not in table:
            yield Problem((*path, name), "is missing, and has no default")


def hint(key: str, known: list[str]) -> str:
    """The nearest known key, else where to find them."""
    close = get_close_matches(key, known, n=1) or [name for name in known if key in name]
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(known)}" if len(known) <= SHOWN_KEYS else "see dflashd.example.toml"


def value_problems(value: object, type_: object, path: Path) -> Iterator[Problem]:
    """The problems of one value, be it a table, a table of tables, or a plain value."""
    bare = get_args(type_)[0] if get_origin(type_) is Annotated else type_
    if isinstance(bare, UnionType):  # a section that may be missing
        bare = next((each for each in get_args(bare) if each is not NoneType), bare)
    if isinstance(value, dict) and isinstance(bare, type) and issubclass(bare, Struct):
        yield from table_problems(cast("dict[str, object]", value), bare, path)
    elif isinstance(value, dict) and get_origin(bare) is dict:
        key_type, item_type = get_args(bare)
        for key, item in cast("dict[str, object]", value).items():
            if any(plain_problems(key, key_type, path)):
                yield Problem((*path, key), NO_NAME)
            yield from value_problems(item, item_type, (*path, key))
    else:
        yield from plain_problems(cast("object", value), type_, path)


def plain_problems(value: object, type_: Any, path: Path) -> Iterator[Problem]:
    """What is wrong with a value that is checked as a whole."""
    try:
        _ = msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        if choices := choices_of(type_):
            words = f"must be one of {', '.join(choices)}, got {shown(value)}"
        else:
            words = said_of_value(str(error), value)
        yield Problem(path, words)


def choices_of(type_: Any) -> list[str]:
    """The allowed words of a key that takes one of several."""
    bare = get_args(type_)[0] if get_origin(type_) is Annotated else type_
    return [str(word) for word in get_args(bare)] if get_origin(bare) is Literal else []


def said_of_value(text: str, value: object) -> str:
    """The checker's words in the file's: its types are TOML's, and what was found is shown."""
    text = text.partition(" - at `$")[0].replace(" | null", "")
    text = _TYPE.sub(lambda found: _IN_WORDS.get(found[1], found[1]), text)
    text = text.replace("Expected", "must be", 1)
    if ", got " in text or not isinstance(value, str | int | float):
        return text
    return f"{text}, got {shown(value)}"


def shown(value: object) -> str:
    """A value as the file has it, shortened."""
    found = str(value).lower() if isinstance(value, bool) else repr(value)
    return found if len(found) <= SHOWN_CHARACTERS else found[:SHOWN_CHARACTERS] + "…"
