"""How much more memory this process may really take."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", "memory.stat", "file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_cache",
    ),
)
"""Of cgroup v2 and v1: the limit, what is held, its parts, and the one that is given up at need."""


def free_bytes(cgroup: Path = _CGROUP) -> int:
    """What the machine has left, or a container's control group, whichever is less."""
    free = psutil.virtual_memory().available
    for limit, held, parts, pages in _FILES:
        try:
            left = int((cgroup / limit).read_text()) - int((cgroup / held).read_text())
            lines = (cgroup / parts).read_text().splitlines()
            left += next((int(n) for name, n in map(str.split, lines) if name == pages), 0)
        except (OSError, ValueError):  # no such file, or "max"
            continue
        free = min(free, max(0, left))
    return free
