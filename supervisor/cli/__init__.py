"""``dflashctl``: the command line that speaks to a daemon."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dflashctl``; the exit status."""
    from .run import run

    try:
        return run(arguments)
    finally:
        # We leave: what is still there need not be looked through for cycles.
        gc.freeze()
