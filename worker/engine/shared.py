"""What models have in common: loaded once, and gone with the last model that holds it.

Python's own reference counts are the counts. So a load that fails, and a model that is dropped
without a word, leave nothing to correct.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints.weights import by_layers, nbytes
from ..decoding.draft import DraftModel
from ..targets.target import Target


class Part(Protocol):
    """Something a model holds that others may hold too."""

    @property
    def arrays(self) -> Sequence[Any]:
        """Its arrays, in groups that are brought into memory one after the other."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class LoadedTarget:
    """A target's weights, and how they are used. ``key`` is all that its logits depend on."""

    key: Hashable
    module: nn.Module
    config: dict[str, Any]
    dtype: mx.Dtype | None
    """What it computes in; None: in whatever is stored."""
    target: Target

    @property
    def arrays(self) -> Sequence[Any]:
        return by_layers(self.module)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class LoadedDraft:
    """A draft's weights. ``key`` is all that its proposals depend on besides the target."""

    key: Hashable
    module: DraftModel

    @property
    def arrays(self) -> Sequence[Any]:
        return by_layers(self.module)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class LoadedTokenizer:
    """A tokenizer as mlx-lm wraps it; no request changes it."""

    tokenizer: Any

    @property
    def arrays(self) -> Sequence[Any]:
        return ()


PartT = TypeVar("PartT", bound=Part)


@final
class SharedParts:
    """The parts that the models of one engine hold now.

    Engines never share: hooks sit on instances for the length of a pass, and two engines may be
    on two threads.
    """

    def __init__(self) -> None:
        self._parts: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    def get(self, kind: type[PartT], key: Hashable) -> PartT | None:
        """The part of that kind and key, if a model holds one."""
        return self._parts.get((kind, key))

    def add(self, key: Hashable, part: Part) -> None:
        """Offer a part that is whole to later loads. The caller goes on holding it."""
        self._parts[type(part), key] = part

    def __len__(self) -> int:
        return len(self._parts)


@final
class Gathering:
    """The parts of one model while it is being loaded: found, or made and offered once whole."""

    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._found: list[Part] = []
        self._made: list[tuple[Hashable, Part]] = []

    def find(self, kind: type[PartT], key: Hashable) -> PartT | None:
        """The part, if another model holds it."""
        part = self._shared.get(kind, key)
        if part is not None:
            self._found.append(part)
        return part

    def make(self, kind: type[PartT], key: Hashable, maker: Callable[[], PartT]) -> PartT:
        """The part as another model holds it, else a new one."""
        part = self.find(kind, key)
        if part is None:
            part = maker()
            self._made.append((key, part))
        return part

    def share(self) -> None:
        """All is in memory and as it should be: others may use it from now on."""
        for key, part in self._made:
            self._shared.add(key, part)

    @property
    def made(self) -> tuple[Part, ...]:
        """The new ones."""
        return tuple(part for _, part in self._made)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them."""
        return (*self._found, *self.made)

    @property
    def memory_bytes(self) -> int:
        """Of all parts."""
        return sum(nbytes(part.arrays) for part in self.parts)

    @property
    def shared_bytes(self) -> int:
        """Of the parts that were there before."""
        return sum(nbytes(part.arrays) for part in self._found)
