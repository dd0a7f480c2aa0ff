"""What a look at this machine found: a fact, whether it is well, and what to do if not.

The doctor's worker side, which has the model libraries, tells the command line by these.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Level = Literal["ok", "note", "problem"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing looked at. ``figures`` are named with their units."""

    name: str
    says: str
    level: Level = "ok"
    advice: str = ""
    figures: dict[str, float | int | str] = {}
