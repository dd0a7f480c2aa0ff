"""The state of one layer's cache as a value."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """One layer's cache. ``rows`` is the sequence length it stands for; None: it does not know.

    ``trimmable``: the state of any shorter prefix can be had from it.
    """

    kind: str
    numbers: tuple[int, ...]
    arrays: tuple[mx.array | None, ...]
    trimmable: bool
    rows: int | None
    parts: tuple[LayerState, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        own = sum(array.nbytes for array in self.arrays if array is not None)
        return own + sum(part.nbytes for part in self.parts)

    def all_arrays(self) -> list[mx.array]:
        """Its arrays and those of its parts."""
        own = [array for array in self.arrays if array is not None]
        return own + [array for part in self.parts for array in part.all_arrays()]
