"""The words of ``dflashctl``: which commands there are, and what a command line says."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from ...protocol.version import VERSION
from . import arguments
from .arguments import Commands

TOPICS: dict[Callable[[Commands], None], dict[str, str]] = {
    arguments.add_lifecycle: dict.fromkeys(
        ("spawn", "retire", "pin", "unpin", "shutdown"), "lifecycle"
    ),
    arguments.add_config: {"reload": "config", "config": "config"},
    arguments.add_looks: {"status": "looks", "models": "looks", "top": "top"},
    arguments.add_watch: {"events": "watch", "logs": "watch", "metrics": "watch"},
    arguments.add_cache: {"cache": "cache"},
    arguments.add_generate: {"generate": "generate", "chat": "chat"},
    arguments.add_bench: {"bench": "bench"},
    arguments.add_service: {"service": "service"},
    arguments.add_keys: {"keys": "keys"},
    arguments.add_machine: {
        "init": "init",
        "doctor": "doctor",
        "completion": "completion",
        "pull": "local",
    },
}
"""What adds the arguments of which commands, and the module with a function of each one's name; in
the order of the help.
"""

HOMES = {name: home for commands in TOPICS.values() for name, home in commands.items()}

VALUED = frozenset({"--runtime-dir", "--connect", "--key"})
"""Options before the command that take the next word."""


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """All commands, or those that ``chosen`` is made with; ``command`` of the result names one.

    All take longer to make than the daemon takes to answer.
    """
    top = argparse.ArgumentParser(
        prog="dflashctl", description="Speaks to a dflashd on this machine."
    )
    top.add_argument("--version", action="version", version=VERSION)
    top.add_argument(
        "--runtime-dir",
        type=Path,
        metavar="DIR",
        help="the daemon's runtime_dir (default: $DFLASHD_RUNTIME_DIR, else the user's own)",
    )
    top.add_argument(
        "--connect", metavar="tcp://HOST:PORT", help="speak to the daemon at this address instead"
    )
    top.add_argument("--key", type=Path, metavar="FILE", help="the key file to do that with")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add, names in TOPICS.items():
        if chosen is None or chosen in names:
            add(commands)
    return top


def named_in(arguments: Sequence[str]) -> str | None:
    """The word where the command stands; empty if there is none, None if its place is not known."""
    place = 0
    while arguments[place : place + 1] and arguments[place] in VALUED:
        place += 2
    if place >= len(arguments):
        return "" if place == len(arguments) else None
    return None if arguments[place].startswith("-") else arguments[place]


def chosen_in(arguments: Sequence[str]) -> str | None:
    """The command in a command line, None where it takes a parser to say."""
    name = named_in(arguments)
    return name if name in HOMES else None


def mistaken(arguments: Sequence[str]) -> str:
    """What is wrong with the command of a command line; argparse would list them all on a line."""
    name = named_in(arguments)
    if name is None or name in HOMES:
        return ""
    if not name:
        return "a command is missing"
    from difflib import get_close_matches  # takes time, and most names are right

    close = get_close_matches(name, HOMES, n=1)
    return f"no command is called {name}" + (f"; did you mean {close[0]}?" if close else "")
