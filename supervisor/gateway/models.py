"""``/v1/models``, in one shape that both official clients read. Pure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from ...protocol.messages import ModelStatus, SnapshotBody


def model_list(snapshot: SnapshotBody) -> dict[str, Any]:
    """All configured models; a draft is a part of its model and never listed."""
    models = [model(each, snapshot) for each in snapshot.models]
    names = [each["id"] for each in models] or [None]
    ends = {"first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": models, "has_more": False, **ends}


def model(status: ModelStatus, snapshot: SnapshotBody) -> dict[str, Any]:
    """One model."""
    created = int(time.time() - snapshot.uptime_s)
    loaded = status.loaded
    return {
        "id": status.name,
        "object": "model",
        "type": "model",
        "display_name": status.name,
        "created": created,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": "dflashd",
        "dflashd": {
            "state": status.state,
            "drafted": status.draft is not None,
            "engine": None if loaded is None else loaded.engine,
            "context_tokens": None if loaded is None else loaded.context_tokens,
        },
    }
