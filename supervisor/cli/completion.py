"""``dflashctl completion``: what a shell needs to complete our words, and what it then asks for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import cast

from ..exit_statuses import EXIT_OK

ASKED_BY_A_SHELL = "_ARGCOMPLETE"
"""Set by the shell's function when it wants words instead of a command's work."""
PATIENCE_S = 0.5


def completion(options: argparse.Namespace) -> int:
    """Print a script for the shell to read at its start."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["dflashctl"], shell=options.shell))
    return EXIT_OK


def answer_the_shell(parser: argparse.ArgumentParser) -> None:
    """Say which words may come next, and exit."""
    import argcomplete

    for command in commands_of(parser):
        for action in command._actions:  # noqa: SLF001  # argcomplete's own way in
            if action.dest == "model":
                action.completer = model_names  # pyright: ignore[reportAttributeAccessIssue]
    argcomplete.autocomplete(parser, append_space=True)


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action.choices, dict):
            yield from cast("dict[str, argparse.ArgumentParser]", action.choices).values()


def model_names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """The models of this machine's daemon; none where it does not answer at once."""
    from ...protocol.asker import ask_status
    from ...protocol.errors import DflashError

    if parsed_args.connect:
        return []  # a daemon elsewhere may take long, and ours has other models
    try:
        snapshot = ask_status(parsed_args.runtime_dir, timeout_s=PATIENCE_S)
    except DflashError:
        return []
    return [model.name for model in snapshot.models]
