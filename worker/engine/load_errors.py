"""Whatever mlx, mlx-lm or the file system says during a load, as one sentence with a code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError

from ...protocol.errors import DflashError, ErrorCode
from ..log import line, log
from . import memory

_UNTYPED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What reading a folder that others made can end in: mlx-lm takes its fields as they come, and the
tokenizer's library checks those that it has a type for."""


@contextmanager
def typed_errors(name: str) -> Generator[None]:
    """Errors of the load of model ``name`` as DflashError: load_failed or out_of_memory."""
    try:
        yield
    except DflashError:
        raise
    except _UNTYPED as error:
        log.exception(line("load_failed", model=name))
        code = ErrorCode.out_of_memory if memory.ran_out(error) else ErrorCode.load_failed
        raise DflashError(code, f"model {name} cannot be loaded: {_said(error)}") from None


def _said(error: Exception) -> str:
    """One line, with the type where the text alone may tell nothing (``KeyError('x')``)."""
    text = " ".join(str(error).split())[:1500]
    telling = isinstance(error, OSError | RuntimeError | ValueError) and text
    return text if telling else f"{type(error).__name__} {text}".rstrip()
