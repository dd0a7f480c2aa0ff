"""Whether the daemon can serve. Pure."""

from __future__ import annotations

from ...protocol.messages import ServiceStatus, SnapshotBody

UP = frozenset({"ready", "busy"})


def unready(snapshot: SnapshotBody) -> list[str]:
    """Why requests cannot be served, a sentence each; empty when they can.

    A model that loads on demand may be down; one that is loaded at the start must be up, and
    what other clients come in by must not have been given up.
    """
    if snapshot.state != "serving":
        return ["the daemon is stopping"]
    required = (model for model in snapshot.models if model.preload)
    reasons = [
        f"model {model.name} is {model.state}" for model in required if model.state not in UP
    ]
    shut = (service for service in snapshot.services if service.state == "fatal")
    return [*reasons, *map(_told, shut)]


def degraded(snapshot: SnapshotBody) -> list[str]:
    """What is not as it should be though requests are served, a sentence each."""
    limping = (s for s in snapshot.services if not s.serves and s.state != "fatal")
    return [*map(_told, limping), *snapshot.problems]


def troubles(snapshot: SnapshotBody) -> list[str]:
    """What a person who looks at the models would not see: ways in that are shut or in doubt, and
    what the daemon itself cannot do as it should.
    """
    shut = (service for service in snapshot.services if not service.serves)
    return [*map(_told, shut), *snapshot.problems]


def _told(service: ServiceStatus) -> str:
    return f"service {service.name} is {service.state}: {service.reason}"
