"""A worker process from its first line to its exit status."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import MutableMapping

from ...protocol import lifeline
from ..engine.imports import make_engine
from ..errors import ConfigurationError
from ..log import configure, line, log
from ..loop.thread import EngineThread
from .environment import Environment

EXIT_STOPPED = 0
EXIT_BROKEN = 1
EXIT_CONFIGURATION = 78
"""Nothing a restart would heal: the supervisor does not try (EX_CONFIG of sysexits.h)."""


def run(environ: MutableMapping[str, str]) -> int:
    """Live as a worker; the exit status."""
    try:
        environment = Environment.take(environ)
    except ConfigurationError as error:
        log.error(line("environment_unusable", reason=error))
        return EXIT_CONFIGURATION
    configure(environment.worker, environment.epoch)
    lifeline.hold(environment.supervisor_pid)
    log.info(line("worker_started", pid=os.getpid()))
    try:
        status = _serve(environment)
    except Exception:  # noqa: BLE001 - the main thread's border
        log.exception(line("io_broke"))
        status = EXIT_BROKEN
    log.info(line("worker_exits", status=status))
    return status


def _serve(environment: Environment) -> int:
    # Late, since the lifeline comes before anything that takes time.
    from .link import Link
    from .outbox import Outbox
    from .wire import WireEffects

    outbox = Outbox()
    effects = WireEffects(environment.epoch, outbox)
    engine = EngineThread(make_engine, effects, on_end=outbox.wake, hang_s=environment.hang_s)
    link = Link(environment, outbox, engine)
    outbox.wake_on_signals()
    signal.signal(signal.SIGTERM, lambda _number, _frame: link.ask_to_stop())
    if not link.run():
        return EXIT_BROKEN
    match engine.failure:
        case None:
            return EXIT_STOPPED
        case ImportError() | ConfigurationError():
            return EXIT_CONFIGURATION
        case _:
            return EXIT_BROKEN


def leave(status: int) -> None:
    """Exit now: other threads, of mlx or of a download, neither delay nor crash it."""
    with contextlib.suppress(OSError, ValueError):  # a full disk under the log
        logging.shutdown()
        sys.stderr.flush()
    os._exit(status)
