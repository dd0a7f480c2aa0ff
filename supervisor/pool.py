"""The memory pool: how many bytes all workers together may take on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

UNLIMITED_BYTES = 2**60
"""Version 1 of cgroups writes a number beyond this where there is no limit."""

WIRED_LIMIT = "iogpu.wired_limit_mb"
LARGE_MAC_BYTES = 32 * 2**30
SYSCTL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A budget in bytes, and where it comes from."""

    budget_bytes: int
    source: str


def memory_pool(share: float, given_bytes: int | None = None) -> Pool:
    """``given_bytes`` as they are; else ``share`` of what this machine, or container, has.

    A Mac's pool is also bounded by what the system lets its GPU use.
    """
    if given_bytes is not None:
        return Pool(budget_bytes=given_bytes, source="memory_bytes of the configuration")
    physical_bytes = psutil.virtual_memory().total
    if sys.platform == "darwin":
        return mac_pool(share, physical_bytes, _sysctl_mib(WIRED_LIMIT))
    return linux_pool(share, physical_bytes)


def linux_pool(share: float, physical_bytes: int, root: Path = Path("/")) -> Pool:
    """``share`` of the physical memory, or of the tightest control group above this process.

    ``root`` is where /proc and /sys are.
    """
    limits = {f"control group {group}": limit for group, limit in _cgroup_limits(root)}
    what, least = min(limits.items(), key=lambda item: item[1], default=("", physical_bytes))
    if least >= physical_bytes:
        what, least = "physical memory", physical_bytes
    return Pool(budget_bytes=int(share * least), source=f"{share:g} of {what}")


def mac_pool(share: float, physical_bytes: int, wired_limit_mib: int) -> Pool:
    """``share`` of unified memory, but never more than the recommended working set.

    The system recommends two thirds up to 32 GiB and three quarters above, unless its
    administrator set ``iogpu.wired_limit_mb``.
    """
    large = physical_bytes > LARGE_MAC_BYTES
    working_set = physical_bytes * 3 // 4 if large else physical_bytes * 2 // 3
    name = "the recommended working set"
    if wired_limit_mib > 0:
        working_set, name = wired_limit_mib * 2**20, WIRED_LIMIT
    shared = int(share * physical_bytes)
    if working_set < shared:
        return Pool(budget_bytes=working_set, source=name)
    return Pool(budget_bytes=shared, source=f"{share:g} of unified memory")


def _cgroup_limits(root: Path) -> Iterator[tuple[str, int]]:
    """Every limit of this process's control groups and all groups above them."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # version 2, alone or beside version 1
            for mount in (mounts, mounts / "unified"):
                yield from _limits_above(mount, group, ("memory.max", "memory.high"))
        elif "memory" in controllers.split(","):
            yield from _limits_above(mounts / "memory", group, ("memory.limit_in_bytes",))


def _limits_above(mount: Path, group: str, files: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    # A container may see its group under the host's path, or with "..": what is not there has no
    # file, and the mount itself, which is always read, is then the container's own group.
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        for file in files:
            for line in _lines(folder / file):
                if line.isdecimal() and int(line) < UNLIMITED_BYTES:
                    yield "/" + "/".join(parts[:depth]), int(line)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _sysctl_mib(name: str) -> int:
    """A number from the system; 0 where it has none of that name."""
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SYSCTL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    text = result.stdout.strip()
    return int(text) if text.isdecimal() else 0
