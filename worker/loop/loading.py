"""Loads in the engine loop: those asked for, and the one that runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ...protocol.messages import LoadBody
from ..errors import Withdrawn


@dataclass(slots=True, kw_only=True)
class Loading:
    """A load that was asked for. ``resumed_at_s``: when it last got the engine thread."""

    name: str
    body: LoadBody
    replace: bool = False
    """Whether a model of this name gives way to it."""
    resumed_at_s: float = 0.0
    thread: int = field(default_factory=threading.get_ident)
    abandoned: str | None = None
    """Why nobody wants it any more."""
    unload_asked: bool = False
    """An Unload came meanwhile and is answered after the load."""

    def abandon(self, why: str) -> None:
        """The load is to end at its next progress; the first reason stays."""
        self.abandoned = self.abandoned or why

    def check(self) -> None:
        """Raise Withdrawn if it was abandoned."""
        if self.abandoned is not None:
            raise Withdrawn(self.abandoned)
