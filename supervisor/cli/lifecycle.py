"""``dflashctl spawn``, ``retire``, ``pin``, ``unpin`` and ``shutdown``."""

from __future__ import annotations

import argparse
import sys
import time

from ...protocol.paths import runtime_dir
from ..exit_statuses import EXIT_FAILED, EXIT_OK
from ..instance_lock import LOCK_NAME, holder_pid
from .connection import asking
from .looks import write_json
from .screen import ProgressLine

LEAVE_S = 5.0
"""How long the daemon may take from its last answer until its lock is free."""


def spawn(options: argparse.Namespace) -> int:
    """Load a model and wait until it is ready."""
    progress = ProgressLine()
    began_s = time.monotonic()
    with asking(options) as daemon:
        try:
            daemon.spawn(options.model, on_event=progress, group=options.group)
        except KeyboardInterrupt:
            progress.clear()
            hint = f"the load goes on; `dflashctl retire {options.model}` ends it"
            sys.stderr.write(f"dflashctl: {hint}\n")
            raise
        finally:
            progress.clear()
    took_s = time.monotonic() - began_s
    if options.json:
        write_json({"model": options.model, "state": "ready", "seconds": took_s})
    else:
        sys.stdout.write(f"{options.model} is ready ({took_s:.1f} s)\n")
    return EXIT_OK


def retire(options: argparse.Namespace) -> int:
    """Unload a model and wait until its worker is gone."""
    with asking(options) as daemon:
        daemon.retire(options.model, now=options.now)
    if options.json:
        write_json({"model": options.model, "state": "stopped"})
    else:
        sys.stdout.write(f"{options.model} is unloaded\n")
    return EXIT_OK


def pin(options: argparse.Namespace) -> int:
    """Keep a model from being evicted."""
    return set_pinned(options, "is pinned until the daemon stops", pinned=True)


def unpin(options: argparse.Namespace) -> int:
    """Let a model go again when room is needed."""
    return set_pinned(options, "is not pinned any more", pinned=False)


def set_pinned(options: argparse.Namespace, words: str, *, pinned: bool) -> int:
    """Have it so, and say so."""
    with asking(options) as daemon:
        daemon.pin(options.model, pinned=pinned)
    if options.json:
        write_json({"model": options.model, "pinned": pinned})
    else:
        sys.stdout.write(f"{options.model} {words}\n")
    return EXIT_OK


def shutdown(options: argparse.Namespace) -> int:
    """Stop the daemon and wait until its workers and its lock are gone."""
    progress = ProgressLine()
    with asking(options) as daemon:
        pid = daemon.status().pid
        try:
            daemon.shutdown(now=options.now, on_event=progress)
        except KeyboardInterrupt:
            progress.clear()
            sys.stderr.write(
                "dflashctl: the shutdown goes on; `dflashctl shutdown --now` shortens it\n"
            )
            raise
        finally:
            progress.clear()
    if options.connect:  # its lock is out of reach
        said(options, pid, "stopping", "dflashd stops")
        return EXIT_OK
    lock = (options.runtime_dir or runtime_dir()) / LOCK_NAME
    end_s = time.monotonic() + LEAVE_S
    while holder_pid(lock) == pid:
        if time.monotonic() >= end_s:
            sys.stderr.write(
                f"dflashctl: dflashd (pid {pid}) has answered, but does not end\n"
                f"  → kill -9 {pid} ends it; its workers then end by themselves\n"
            )
            return EXIT_FAILED
        time.sleep(0.01)
    said(options, pid, "stopped", "dflashd has stopped")
    return EXIT_OK


def said(options: argparse.Namespace, pid: int, state: str, sentence: str) -> None:
    """How far a shutdown has come."""
    if options.json:
        write_json({"pid": pid, "state": state})
    else:
        sys.stdout.write(f"{sentence}\n")
