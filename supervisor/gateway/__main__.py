"""``python -m dflashd.supervisor.gateway SETTINGS``: the gateway's process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ...protocol import lifeline
from ...protocol.errors import DflashError
from ..errors import DaemonError
from ..exit_statuses import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_OK
from ..logs.log import configure, line, log
from .settings import GatewaySettings, read


def main() -> int:
    """Serve until told to stop; the exit status."""
    configure()
    lifeline.hold(int(os.environ["DFLASHD_SUPERVISOR_PID"]))
    try:
        settings = read(sys.argv[1])
        from .server import serve
    except (IndexError, msgspec.MsgspecError, ImportError) as error:
        log.error(line("http_unusable", reason=error))
        return EXIT_CONFIGURATION
    return run(settings, serve)


def run(
    settings: GatewaySettings, serve: Callable[[GatewaySettings], Coroutine[Any, Any, None]]
) -> int:
    """Serve; the exit status."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        asyncio.run(serve(settings))
    except DaemonError as error:  # an operator must act
        log.error(line("http_unusable", reason=error))
        return EXIT_CONFIGURATION
    except (DflashError, OSError) as error:
        log.error(line("http_failed", reason=error))
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
