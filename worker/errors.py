"""Exceptions of the worker process, each named by who must act."""

from __future__ import annotations

from ..protocol.errors import DflashError, ErrorCode


class ConfigurationError(Exception):
    """The environment is wrong: an operator must act, and a restart would not help."""


class Withdrawn(DflashError):
    """The model or the worker goes away; a load's progress callback raises it to end the load."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.shutting_down, why, retryable=True)


class DFlashHookConflict(DflashError):
    """Somebody else works on a class that a model needs. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.hook_conflict, message)
