"""What went wrong, as HTTP says it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.errors import DflashError, ErrorCode

STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.bad_request: 400,
    ErrorCode.unsupported: 400,
    ErrorCode.not_found: 404,
    ErrorCode.overloaded: 429,
    ErrorCode.deadline: 408,
    ErrorCode.cancelled: 503,
    ErrorCode.worker_lost: 503,
    ErrorCode.worker_restarting: 503,
    ErrorCode.load_failed: 503,
    ErrorCode.hook_conflict: 503,
    ErrorCode.out_of_memory: 503,
    ErrorCode.slow_consumer: 408,
    ErrorCode.protocol: 500,
    ErrorCode.unauthorised: 401,
    ErrorCode.shutting_down: 503,
    ErrorCode.internal: 500,
}

_FIELD = re.compile(r"field '(?P<quoted>[^']+)'|^(?P<first>[\w.]+)(\[[^]]*\])*: Expected ")
"""Where the daemon's sentences, and those of the client library, name a field."""

_MAY_HELP = frozenset({429, 503})
"""Statuses that say when to come back."""

RETRY_AFTER_S = 1.0
"""Where nobody knows better."""

CHALLENGE = 'Bearer realm="dflashd", Basic realm="dflashd"'

REPAIR_S = 30.0
"""The same where somebody has to act before it can work."""


@dataclass(kw_only=True, eq=False)  # not frozen: Python writes tracebacks into exceptions
class Problem(Exception):
    """A refusal or failure: ``param`` names the parameter it is about, if it is about one."""

    status: int
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the status; the official clients obey both."""
        if self.status == 401:
            return {"www-authenticate": CHALLENGE, "x-should-retry": "false"}
        advice = {"x-should-retry": "true" if self.retryable else "false"}
        if self.status not in _MAY_HELP:
            return advice
        usual_s = RETRY_AFTER_S if self.retryable else REPAIR_S
        wait_s = usual_s if self.retry_after_s is None else self.retry_after_s
        return {**advice, "retry-after": str(max(1, math.ceil(wait_s)))}


def bad(message: str, param: str | None = None) -> Problem:
    """The request itself is wrong."""
    return Problem(status=400, code="bad_request", message=message, param=param)


def unsupported(param: str, why: str) -> Problem:
    """A parameter that cannot be honoured, by name."""
    return Problem(status=400, code="unsupported", message=f"{param}: {why}", param=param)


def no_model(model: str) -> Problem:
    """A model that is not configured."""
    message = f"the model {model[:128]!r} does not exist: /v1/models lists those that do"
    return Problem(status=404, code="model_not_found", message=message, param="model")


def problem_of(error: DflashError) -> Problem:
    """An error of the daemon as HTTP says it."""
    code, status, retryable = error.code, STATUS[error.code], error.retryable
    if code is ErrorCode.not_found and not retryable:
        return Problem(status=404, code="model_not_found", message=error.message, param="model")
    if code is ErrorCode.not_found:  # of the client library: no daemon is there
        status = 503
    # The whole request is repeated over HTTP, so what was under way when it broke may be too.
    broken = code in (ErrorCode.worker_lost, ErrorCode.shutting_down, ErrorCode.overloaded)
    named = _FIELD.search(error.message) if status == 400 else None
    return Problem(
        status=status,
        code=str(code),
        message=error.message,
        param=_last_name(named) if named else None,
        retryable=retryable or broken,
        retry_after_s=error.retry_after_s,
    )


def _last_name(named: re.Match[str]) -> str:
    return (named["quoted"] or named["first"]).rpartition(".")[2]
