"""What a client says when nobody, or nobody of ours, answers where a daemon should be."""

from __future__ import annotations

from pathlib import Path

from .errors import DflashError, ErrorCode
from .paths import full_path


def nobody(url: str) -> DflashError:
    """No process listens, or it lets nobody more in."""
    if full_path(Path(url.removeprefix("ipc://"))).exists():
        sentence = f"the daemon at {url} has no room for another connection: close some"
        return DflashError(ErrorCode.overloaded, sentence, retryable=True, retry_after_s=1.0)
    return DflashError(
        ErrorCode.not_found,
        f"no daemon listens at {url}: start one with 'dflashd serve'",
        retryable=True,
    )


def mute(url: str) -> DflashError:
    """Something listens and says nothing."""
    return DflashError(
        ErrorCode.worker_lost,
        f"the daemon at {url} does not answer: look at its log, or restart it",
        retryable=True,
    )


def stranger(url: str) -> DflashError:
    """What answers is something else."""
    return DflashError(
        ErrorCode.protocol, f"what listens at {url} is not a dflashd of this version"
    )
