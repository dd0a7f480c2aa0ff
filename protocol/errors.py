"""The error taxonomy of the wire, and the one exception that carries it."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a request or a message failed; the whole set, closed."""

    bad_request = "bad_request"
    unsupported = "unsupported"
    not_found = "not_found"
    overloaded = "overloaded"
    deadline = "deadline"
    cancelled = "cancelled"
    worker_lost = "worker_lost"
    worker_restarting = "worker_restarting"
    load_failed = "load_failed"
    hook_conflict = "hook_conflict"
    out_of_memory = "out_of_memory"
    slow_consumer = "slow_consumer"
    protocol = "protocol"
    unauthorised = "unauthorised"
    shutting_down = "shutting_down"
    internal = "internal"


class DflashError(Exception):
    """A failure with a code, a sentence for a person, and advice about trying again.

    ``retry_after_s`` is in seconds and only given when ``retryable``.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message)  # both, so that it can be pickled
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Malformed(DflashError):
    """A message that was refused; answer it with Failed to ``request_id`` (None: unreadable)."""

    def __init__(self, code: ErrorCode, message: str, request_id: bytes | None = None) -> None:
        super().__init__(code, message)
        self.request_id = request_id


class Stranger(DflashError):
    """A message without our signature: drop and count it, do not answer."""


def found_by_msgspec(error: Exception) -> tuple[str, str]:
    """What msgspec says is wrong, and the field it is about; empty: the whole."""
    problem, _, path = str(error).partition(" - at ")
    return problem, path.strip("`").removeprefix("$").removeprefix(".")
