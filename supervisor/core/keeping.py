"""Models that the configuration or an operator wants to have: preloaded, pinned."""

from __future__ import annotations

from ...protocol.messages import Done, Pin
from .events import Peer
from .records import Model
from .state import State


def preload(s: State) -> None:
    """The daemon serves: load what is to be there from the start."""
    for model in s.models.values():
        adopt(s, model)


def adopt(s: State, model: Model) -> None:
    """A model is new here: it is loaded now if its settings want that."""
    if model.settings.preload:
        summon(s, model)


def summon(s: State, model: Model) -> None:
    """Have a model loaded though nobody waits for it."""
    model.summoned = True
    s.call(model)


def pin(s: State, peer: Peer, header: Pin, model: Model) -> None:
    """Let a model never be evicted nor unloaded for being idle; or let it be again."""
    model.pinned = header.pinned
    s.note("model_pinned" if header.pinned else "model_unpinned", model=model.name)
    s.touch(s.worker_of(model))
    s.tell(peer, Done(id=header.id))
