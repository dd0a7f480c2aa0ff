"""``dflashd``: the daemon's command line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from ..protocol.errors import DflashError
from ..protocol.version import VERSION
from .config_source import ConfigSource
from .daemon import WORKER_COMMAND, Daemon
from .errors import AlreadyServed, ConfigError, DaemonError
from .exit_statuses import (
    EXIT_CONFIGURATION,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TRY_AGAIN,
)
from .logs import log


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dflashd``; the exit status."""
    parsed = parser().parse_args(arguments)
    log.configure()
    return run(parsed.config, with_parent=parsed.with_parent)


def run(
    path: Path | None,
    *,
    worker_command: Sequence[str] = WORKER_COMMAND,
    with_parent: bool = False,
) -> int:
    """Serve what the file at ``path`` says until told to stop; the exit status."""
    try:
        configs = ConfigSource(path)
    except ConfigError as error:
        return complain(str(error), EXIT_CONFIGURATION)

    async def serve() -> None:
        daemon = Daemon(configs, worker_command=worker_command, with_parent=with_parent)
        await daemon.run(announce)

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:  # before the signal handlers were there
        return EXIT_INTERRUPTED
    except AlreadyServed as error:
        return complain(str(error), EXIT_TRY_AGAIN)
    except DaemonError as error:
        return complain(str(error), EXIT_FAILED)
    except DflashError as error:
        return complain(error.message, EXIT_CONFIGURATION)
    return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The arguments of ``dflashd``."""
    top = argparse.ArgumentParser(
        prog="dflashd", description="Keeps several DFlash models live on one machine."
    )
    top.add_argument("--version", action="version", version=VERSION)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve in the foreground until stopped")
    serve.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with the models (see dflashd.example.toml)",
    )
    serve.add_argument(
        "--with-parent",
        action="store_true",
        help="stop at once when the program that started this one ends: it must hold the other "
        "end of stdin, a pipe",
    )
    return top


def announce(sentence: str) -> None:
    """Say on stdout that clients may come."""
    # Whoever started us may not listen, or may have closed our output: no reason to stop.
    with contextlib.suppress(OSError, AttributeError):
        sys.stdout.write(sentence + "\n")
        sys.stdout.flush()


def complain(sentence: str, status: int) -> int:
    """Say why not, on stderr."""
    sys.stderr.write("".join(f"dflashd: {line}\n" for line in sentence.splitlines()))
    return status


if __name__ == "__main__":
    sys.exit(main())
