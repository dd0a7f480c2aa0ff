"""Exit statuses of ``dflashctl``. They are stable: scripts rely on them."""

from __future__ import annotations

from ...protocol.errors import DflashError, ErrorCode

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
"""Wrong arguments (argparse's own)."""
EXIT_NO_DAEMON = 3
EXIT_NOT_FOUND = 4
EXIT_REFUSED = 5
"""The request cannot be served as it is: bad_request, unsupported, unauthorised."""
EXIT_TRY_AGAIN = 75
"""It may work later (EX_TEMPFAIL of sysexits.h)."""
EXIT_INTERRUPTED = 130

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
