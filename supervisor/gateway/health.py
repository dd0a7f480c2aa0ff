"""Whether the daemon can serve. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.messages import SnapshotBody

UP = frozenset({"ready", "busy"})


def unready(snapshot: SnapshotBody, required: Sequence[str]) -> list[str]:
    """Why requests cannot be served, a sentence each; empty when they can.

    A model that loads on demand may be down; one that is loaded at the start must be up.
    """
    if snapshot.state != "serving":
        return ["the daemon is stopping"]
    states = {model.name: model.state for model in snapshot.models}
    down = [name for name in required if states.get(name) not in UP]
    return [f"model {name} is {states.get(name, 'not configured')}" for name in down]
