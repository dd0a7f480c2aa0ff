"""Which exit status of ``dflashctl`` an error stands for."""

from __future__ import annotations

from ...protocol.errors import DflashError, ErrorCode
from ..exit_statuses import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_TRY_AGAIN

_BY_CODE = {
    ErrorCode.not_found: EXIT_NOT_FOUND,
    ErrorCode.bad_request: EXIT_REFUSED,
    ErrorCode.unsupported: EXIT_REFUSED,
    ErrorCode.unauthorised: EXIT_REFUSED,
    ErrorCode.cancelled: EXIT_FAILED,
}


class NoDaemon(Exception):
    """Nobody answers where a daemon should be; start one."""


def status_of(error: DflashError) -> int:
    """The exit status that stands for an error."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return EXIT_TRY_AGAIN if error.retryable else EXIT_FAILED


def sentence_of(error: DflashError) -> str:
    """The error for a person, with what to do where that is known."""
    if error.retry_after_s is not None:
        return f"{error} (try again in {error.retry_after_s:.0f} s)"
    return str(error)
