"""How a failure of ours is put: one way to build the message, and the sentences many parts say."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from ...protocol.errors import ErrorCode
from ...protocol.messages import Failed
from .records import SENTENCE_CHARACTERS, Model

STOPPING = "the daemon is stopping"
CANCELLED = "cancelled by its client"


def failed(
    id: bytes | None,
    code: ErrorCode,
    message: str,
    *,
    retryable: bool = False,
    retry_after_s: float | None = None,
) -> Failed:
    """The end of a request or command that does not succeed."""
    return Failed(
        id=id,
        code=code,
        message=message[:SENTENCE_CHARACTERS],
        retryable=retryable,
        retry_after_s=retry_after_s,
    )


def unknown(models: Mapping[str, Model], name: str) -> str:
    """The sentence for a model nobody configured."""
    if name in models:
        return removed(name)
    served = [model.name for model in models.values() if not model.removed]
    close = get_close_matches(name, served, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    known = ", ".join(served[:20]) or "none"
    return f"no model {name} is configured{hint} (configured: {known})"


def removed(name: str) -> str:
    """The sentence for a model that is only there until its last requests are done."""
    return f"model {name} was removed from the configuration"


def given_up(name: str, reason: str) -> str:
    """The sentence for a model that is down until an operator spawns it."""
    return f"model {name} is down: {reason} (`dflashctl spawn {name}` tries again)"
