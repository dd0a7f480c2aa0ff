"""A worker's log file: written by the worker itself, opened and read by us."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

ROTATE_AT_BYTES = 8 * 2**20
"""A log that large is put aside (one old one is kept) before its worker starts again."""

TAIL_BYTES = 4096
TAIL_LINES = 8


def log_path(log_dir: Path, worker: str) -> Path:
    """Where a worker's log is; a name with slashes stays one file."""
    return log_dir / f"{quote(worker, safe='')}.log"


def open_log(path: Path) -> int:
    """Open for appending and return the descriptor. Raises OSError."""
    if path.exists() and path.stat().st_size >= ROTATE_AT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def tail(path: Path, since_bytes: int) -> str:
    """The last lines written after ``since_bytes``, made printable; empty if there are none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since_bytes, end - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    lines = data.decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join("".join(c if c.isprintable() else "?" for c in text) for text in lines)
