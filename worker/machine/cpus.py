"""How many CPUs this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """CPUs by affinity and by the control group's quota, whichever is less; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _quota_cpus(cgroup)
    return max(1, min(allowed or 1, math.ceil(quota)) if quota else allowed or 1)


def _quota_cpus(cgroup: Path) -> float | None:
    """The quota in CPUs, from cgroup v2 or v1; None when there is none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None  # "max": no quota
    return cpus if cpus > 0 else None
