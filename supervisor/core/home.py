"""What a process slot is for. It is this that models share, never a slot's name."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from typing import Literal, NamedTuple

from ..config.model_section import ModelSection

LONGEST_STEM = 120
"""Characters of a name to which a number is added: names have at most 128."""


class Home(NamedTuple):
    """A group, or one model alone. A group and a model of one name are two homes."""

    kind: Literal["group", "model"]
    name: str


def alone(model: str) -> Home:
    """The home of a model that shares its worker with nobody."""
    return Home("model", model)


def configured(model: str, section: ModelSection) -> Home:
    """Where the configuration wants a model."""
    return Home("group", section.group) if section.group else alone(model)


def asked(model: str, group: str) -> Home:
    """Where an operator wants a model: its own name means alone."""
    return alone(model) if group == model else Home("group", group)


def free_name(name: str, taken: Container[str]) -> str:
    """A slot's name: its home's, with a number where another slot is called so."""
    stem = name[:LONGEST_STEM]
    numbered = (f"{stem}:{n}" for n in count(2))
    return next(each for each in chain((name,), numbered) if each not in taken)
