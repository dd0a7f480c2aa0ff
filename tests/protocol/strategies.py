"""Hypothesis strategies for every message, made from the types' own constraints."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec.inspect as mi
from hypothesis import strategies as st

from dflashd.protocol.messages import (
    BODY_OF,
    Body,
    Event,
    FromClient,
    FromControl,
    FromWorker,
    GenerateBody,
    Header,
    ToClient,
    ToWorker,
)

UNIONS: dict[str, Any] = {
    "FromClient": FromClient,
    "FromControl": FromControl,
    "ToClient": ToClient,
    "FromWorker": FromWorker,
    "ToWorker": ToWorker,
}
KINDS: tuple[type[Header], ...] = tuple(
    sorted(
        {kind for union in UNIONS.values() for kind in get_args(union)}, key=lambda k: k.__name__
    )
)
assert Event in KINDS

_SMALL = 6


def values(type_: type) -> st.SearchStrategy[Any]:
    """Return valid values of a Header or Body type."""
    if type_ is GenerateBody:
        return _generate_bodies()
    return _strategy(mi.type_info(type_))


def headers() -> st.SearchStrategy[Header]:
    """Return valid headers of every kind."""
    return st.one_of([values(kind) for kind in KINDS])


def _generate_bodies() -> st.SearchStrategy[GenerateBody]:
    info = mi.type_info(GenerateBody)
    assert isinstance(info, mi.StructType)
    fields = {field.name: _strategy(field.type) for field in info.fields}
    sources = ("prompt", "messages", "tokens")
    common = {name: fields[name] for name in fields if name not in sources}

    def one_source(source: str) -> st.SearchStrategy[GenerateBody]:
        given = fields[source].filter(lambda value: value is not None)
        return st.builds(GenerateBody, **{**common, source: given})

    return st.sampled_from(sources).flatmap(one_source)


def _strategy(info: mi.Type) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911, PLR0912 - one case a type
    match info:
        case mi.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _strategy(field.type) for field in fields})
        case mi.UnionType(types=types):
            return st.one_of([_strategy(inner) for inner in types])
        case mi.LiteralType(values=choices):
            return st.sampled_from(choices)
        case mi.EnumType(cls=cls):
            return st.sampled_from(cls)
        case mi.NoneType():
            return st.none()
        case mi.BoolType():
            return st.booleans()
        case mi.IntType(ge=ge, le=le, lt=lt):
            highest = le if le is not None else lt - 1 if lt is not None else 2**53
            return st.integers(ge or 0, highest)
        case mi.FloatType(ge=ge, gt=gt, le=le):
            lowest = ge if ge is not None else gt
            return st.floats(lowest, le, allow_nan=False, exclude_min=gt is not None)
        case mi.StrType(pattern=str() as pattern):
            return st.from_regex(re.compile(pattern)).filter(
                lambda text: len(text) <= (info.max_length or 2**20)
            )
        case mi.StrType(min_length=low, max_length=high):
            return st.text(min_size=low or 0, max_size=min(high or 20, 20))
        case mi.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high or 64, 64))
        case mi.VarTupleType(item_type=item, min_length=low):
            return st.lists(_strategy(item), min_size=low or 0, max_size=_SMALL).map(tuple)
        case mi.DictType(value_type=value):
            return st.dictionaries(st.text(max_size=8), _strategy(value), max_size=_SMALL)
        case mi.AnyType():
            return st.integers(0, 9)
        case _:
            raise NotImplementedError(info)


def bodies() -> st.SearchStrategy[Body]:
    """Return valid bodies of every type that travels on its own."""
    types = sorted(set(BODY_OF.values()), key=lambda type_: type_.__name__)
    return st.one_of([values(type_) for type_ in types])
