"""``dflashctl spawn``, ``retire``, ``pin``, ``unpin`` and ``shutdown``."""

from __future__ import annotations

import argparse
import sys
import time

from ...protocol.paths import runtime_dir
from ..instance_lock import LOCK_NAME
from .connection import connected
from .exits import EXIT_OK
from .screen import ProgressLine

LEAVE_S = 5.0
"""How long the daemon may take from its last answer until its lock is free."""


def spawn(options: argparse.Namespace) -> int:
    """Load a model and wait until it is ready."""
    progress = ProgressLine()
    began_s = time.monotonic()
    with connected(options) as client:
        try:
            client.spawn(options.model, on_event=progress, group=options.group)
        except KeyboardInterrupt:
            progress.clear()
            hint = f"the load goes on; `dflashctl retire {options.model}` ends it"
            sys.stderr.write(f"dflashctl: {hint}\n")
            raise
        finally:
            progress.clear()
    sys.stdout.write(f"{options.model} is ready ({time.monotonic() - began_s:.1f} s)\n")
    return EXIT_OK


def retire(options: argparse.Namespace) -> int:
    """Unload a model and wait until its worker is gone."""
    with connected(options) as client:
        client.retire(options.model, now=options.now)
    sys.stdout.write(f"{options.model} is unloaded\n")
    return EXIT_OK


def pin(options: argparse.Namespace) -> int:
    """Keep a model from being evicted."""
    with connected(options) as client:
        client.pin(options.model)
    sys.stdout.write(f"{options.model} is pinned until the daemon stops\n")
    return EXIT_OK


def unpin(options: argparse.Namespace) -> int:
    """Let a model go again when room is needed."""
    with connected(options) as client:
        client.pin(options.model, pinned=False)
    sys.stdout.write(f"{options.model} is not pinned any more\n")
    return EXIT_OK


def shutdown(options: argparse.Namespace) -> int:
    """Stop the daemon and wait until its workers are gone."""
    with connected(options) as client:
        client.shutdown(now=options.now)
    lock = (options.runtime_dir or runtime_dir()) / LOCK_NAME
    end_s = time.monotonic() + LEAVE_S
    while lock.exists() and time.monotonic() < end_s:
        time.sleep(0.01)
    sys.stdout.write("dflashd has stopped\n")
    return EXIT_OK
