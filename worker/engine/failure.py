"""From whatever an engine raised to the one sentence a person gets.

Always a new exception: the raised one refers through its traceback to every array on the stack.
"""

from __future__ import annotations

from ...protocol.errors import DflashError, ErrorCode
from .border import Engine


def request_failure(error: Exception, engine: Engine) -> DflashError:
    """What to answer a request that ``error`` ended; no traceback and no content leaves here."""
    if isinstance(error, DflashError):
        return detached(error)
    if engine.ran_out_of_memory(error):
        return DflashError(
            ErrorCode.out_of_memory,
            "memory ran out while this request was running",
            retryable=True,
        )
    return DflashError(
        ErrorCode.internal,
        f"the engine failed on this request ({type(error).__name__}); see the worker's log",
    )


def load_failure(error: Exception, engine: Engine) -> DflashError:
    """What to answer a load that ``error`` ended."""
    if isinstance(error, DflashError):
        return detached(error)
    if engine.ran_out_of_memory(error):
        return DflashError(ErrorCode.out_of_memory, "memory ran out while the model was loading")
    return DflashError(
        ErrorCode.load_failed,
        f"the load failed unexpectedly ({type(error).__name__}); see the worker's log",
    )


def detached(error: DflashError) -> DflashError:
    """The same failure as a new exception, without a traceback."""
    return DflashError(
        error.code,
        error.message,
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
    )
