"""The machine that figures are about."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import mlx.core as mx
import psutil

from dflashd.worker.machine.blas import BlasReport
from dflashd.worker.machine.cpus import available_cpus


def machine(blas: BlasReport) -> dict[str, str | int]:
    """What decides speed here, as plain values."""
    return {
        "cpu": _cpu_name(),
        "cpus": available_cpus(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "device": str(mx.default_device()),
        "mlx": metadata.version("mlx"),
        "mlx_lm": metadata.version("mlx-lm"),
        "blas": f"{blas.name} {blas.version} {blas.core}".strip(),
        "blas_threads": blas.threads,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
