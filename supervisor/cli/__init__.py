"""``dflashctl``: the command line that speaks to a daemon."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dflashctl``; the exit status."""
    from .run import run

    return run(arguments)
