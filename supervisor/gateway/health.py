"""Whether the daemon can serve. Pure."""

from __future__ import annotations

from ...protocol.messages import SnapshotBody

UP = frozenset({"ready", "busy"})


def unready(snapshot: SnapshotBody) -> list[str]:
    """Why requests cannot be served, a sentence each; empty when they can.

    A model that loads on demand may be down; one that is loaded at the start must be up.
    """
    if snapshot.state != "serving":
        return ["the daemon is stopping"]
    required = (model for model in snapshot.models if model.preload)
    return [f"model {model.name} is {model.state}" for model in required if model.state not in UP]
