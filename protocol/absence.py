"""What a client says when nobody, or nobody of ours, answers where a daemon should be."""

from __future__ import annotations

from .errors import DflashError, ErrorCode


def nobody(url: str) -> DflashError:
    """No process listens."""
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
