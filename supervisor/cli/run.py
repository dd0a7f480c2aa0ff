"""From arguments to an exit status: each command is imported when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType

from ...protocol.errors import DflashError
from ..errors import ConfigError
from ..exit_statuses import (
    EXIT_CONFIGURATION,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_DAEMON,
    EXIT_USAGE,
)
from .advice import advice_of, advice_without_daemon
from .completion import ASKED_BY_A_SHELL, answer_the_shell
from .exits import NoDaemon, sentence_of, status_of
from .parser import HOMES, chosen_in, mistaken, parser

STREAMS = (
    ("stdin", "r", "surrogateescape"),  # what is no text is refused where it is sent
    ("stdout", "w", "replace"),
    ("stderr", "w", "backslashreplace"),
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    ready_streams()
    if ASKED_BY_A_SHELL in os.environ:
        answer_the_shell(parser())
    words = sys.argv[1:] if arguments is None else arguments
    if sentence := mistaken(words):
        return complain(sentence, EXIT_USAGE, "`dflashctl --help` lists the commands")
    options = parser(chosen_in(words)).parse_args(words)
    try:
        status = call(options)
        sys.stdout.flush()
    except (DflashError, NoDaemon, ConfigError) as error:
        return refused(error, options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return drop_output()  # whoever read it has left
    except OSError as error:
        return complain(f"the output cannot be written: {error}", drop_output())
    return status


def ready_streams() -> None:
    """Have them whatever our parent closed, and for any text whatever its encoding."""
    for name, mode, errors in STREAMS:
        stream: object = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open to the end)
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def drop_output() -> int:
    """Keep Python's own flush at exit from complaining too; the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED


def call(options: argparse.Namespace) -> int:
    """Call the function of the chosen command's name in its home module."""
    home: ModuleType = import_module(f".{HOMES[options.command]}", __package__)
    function = getattr(home, options.command)
    status: int = function(options)
    return status


def refused(error: DflashError | NoDaemon | ConfigError, options: argparse.Namespace) -> int:
    """Say why a command was not carried out."""
    match error:
        case DflashError():
            return complain(sentence_of(error), status_of(error), advice_of(error, options))
        case NoDaemon():
            return complain(str(error), EXIT_NO_DAEMON, advice_without_daemon(options))
        case ConfigError():
            return complain(str(error), EXIT_CONFIGURATION)


def complain(sentence: str, status: int, advice: str = "") -> int:
    """Say what went wrong on stderr, and on another line what to do about it."""
    from .screen import printable  # which knows the daemon's messages; most commands end well

    lines = printable(sentence).splitlines()  # a model's files may have had a say in it
    said = "".join(f"dflashctl: {line}\n" for line in lines)
    sys.stderr.write(said + (f"  → {advice}\n" if advice else ""))
    return status
