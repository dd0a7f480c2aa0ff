"""``python -m dflashd.worker``: started by the supervisor, never by hand."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Become a worker."""
    # Until there is anything to leave in order, leaving at once is orderly.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the supervisor's.
    from .process.process import leave, run

    leave(run(os.environ))


if __name__ == "__main__":
    main()
