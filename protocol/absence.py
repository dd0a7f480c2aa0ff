"""What a client says when nobody, or nobody of ours, answers where a daemon should be."""

from __future__ import annotations

from pathlib import Path

import zmq

from .errors import DflashError, ErrorCode
from .paths import full_path


class Unanswered(DflashError):
    """The daemon itself gives no answer: no other question would get one."""


class ConnectionLost(Unanswered):
    """The daemon closed the connection, or died: what waited for it has no answer."""


def lost(url: str) -> ConnectionLost:
    """It was there."""
    sentence = f"the daemon at {url} closed the connection"
    return ConnectionLost(ErrorCode.worker_lost, sentence, retryable=True)


def closed() -> DflashError:
    """It was us."""
    return DflashError(ErrorCode.cancelled, "the client was closed")


def no_socket(error: zmq.ZMQError) -> DflashError:
    """It does not even come to a connection."""
    return DflashError(ErrorCode.internal, f"no socket can be opened: {error}")


def nobody(url: str) -> DflashError:
    """No process listens, or it lets nobody more in."""
    if url.startswith("ipc:"):
        try:
            _ = full_path(Path(url.removeprefix("ipc://"))).stat()
        except PermissionError:
            return foreign(url)
        except OSError:
            pass
        else:
            sentence = f"the daemon at {url} has no room for another connection: close some"
            return DflashError(ErrorCode.overloaded, sentence, retryable=True, retry_after_s=1.0)
    return DflashError(
        ErrorCode.not_found,
        f"no daemon listens at {url}"
        + (": start one with 'dflashd serve'" if url.startswith("ipc:") else ""),
        retryable=True,
    )


def foreign(url: str) -> DflashError:
    """We may not even look."""
    return DflashError(
        ErrorCode.unauthorised,
        f"{url} is in a directory that only another user may enter",
    )


def mute(url: str) -> DflashError:
    """Something listens and says nothing."""
    return Unanswered(
        ErrorCode.worker_lost,
        f"the daemon at {url} does not answer: look at its log, or restart it",
        retryable=True,
    )


def stranger(url: str) -> DflashError:
    """What answers is something else."""
    return DflashError(
        ErrorCode.protocol, f"what listens at {url} is not a dflashd of this version"
    )


def unauthorised(url: str) -> DflashError:
    """A daemon listens and does not know our key, or knows it no more."""
    return DflashError(
        ErrorCode.unauthorised,
        f"the daemon at {url} does not allow this key: `dflashctl keys list` there shows those "
        "that it does",
    )


def broken(url: str, *, has_key: bool) -> DflashError:
    """Somebody listens and breaks off before we have met."""
    if url.startswith("ipc:"):
        return DflashError(
            ErrorCode.protocol,
            f"what listens at {url} breaks the connection off: is it a dflashd?",
            retryable=True,
        )
    guess = (
        "is it a dflashd, and the one that this key file was made for?"
        if has_key
        else "a dflashd there asks for a key, and none was given"
    )
    return DflashError(
        ErrorCode.unauthorised,
        f"what listens at {url} breaks the connection off: {guess} "
        "(It does so too when it has no room for more connections.)",
        retryable=True,
    )
