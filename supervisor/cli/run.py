"""From arguments to an exit status: each command is imported when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from ...protocol.errors import DflashError
from .arguments import parser
from .exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NO_DAEMON, NoDaemon, sentence_of, status_of

_HOMES = {
    "spawn": "lifecycle",
    "retire": "lifecycle",
    "shutdown": "lifecycle",
    "status": "looks",
    "models": "looks",
    "cache": "cache",
    "generate": "generate",
    "chat": "chat",
    "pull": "local",
    "doctor": "local",
}


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    options = parser().parse_args(arguments)
    try:
        status = call(options)
        sys.stdout.flush()
    except DflashError as error:
        return complain(sentence_of(error), status_of(error))
    except NoDaemon as error:
        return complain(str(error), EXIT_NO_DAEMON)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return status


def call(options: argparse.Namespace) -> int:
    """Call the function of the chosen command's name in its home module."""
    home: ModuleType = import_module(f".{_HOMES[options.command]}", __package__)
    function = getattr(home, options.command)
    status: int = function(options)
    return status


def complain(sentence: str, status: int) -> int:
    """Say what went wrong, on one line of stderr."""
    sys.stderr.write(f"dflashctl: {sentence}\n")
    return status
