"""What this machine computes with: each fact, whether it is well, and what to do if not."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...protocol.finding import Finding
from ...protocol.paths import cache_dir
from ..checkpoints.embedded import SMOLLM2
from . import blas, jit
from .blas_verdict import cpu_name
from .cpus import available_cpus

SLOW_GFLOP_PER_S = 8.0
"""Any core of this century does several times as much; mlx's reference BLAS does about 2."""

_GIB = 2**30


def examine() -> Iterator[Finding]:
    """Look at everything, in a second or two; before mlx in its process."""
    report = blas.prepare()
    compiler = jit.prepare()
    yield _machine()
    yield _device()
    yield _blas(report)
    yield _speed(report)
    yield _compiler(compiler)
    yield _cache()


def _machine() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    cpus = available_cpus()
    return Finding(
        name="machine",
        says=f"{platform.system()} {platform.machine()}, {cpu_name()}, {cpus} CPUs, "
        f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB memory available",
        figures={
            "cpus": cpus,
            "memory_total_bytes": memory.total,
            "memory_available_bytes": memory.available,
        },
    )


def _device() -> Finding:
    import mlx.core as mx

    model = str(mx.device_info().get("device_name", "of an unknown kind"))
    if mx.default_device().type != mx.DeviceType.cpu:
        kind = "Metal" if mx.metal.is_available() else "CUDA"
        return Finding(
            name="device",
            says=f"GPU by {kind}: {model}; dtype 'auto' keeps a model as it is stored",
            figures={"device": "gpu", "backend": kind, "name": model, "dtype": "as stored"},
        )
    figures: dict[str, float | int | str] = {"device": "cpu", "name": model, "dtype": "float32"}
    if platform.system() == "Darwin":
        return Finding(
            name="device",
            says="CPU: Metal is not available to this process",
            level="problem",
            advice="mlx needs Apple silicon and macOS 14 or newer, and no virtual machine between",
            figures=figures,
        )
    return Finding(
        name="device",
        says="CPU; dtype 'auto' computes in float32 where memory allows",
        level="note",
        advice="a CPU is slower at quantised and 16-bit weights than at float32, so a model takes "
        '4 bytes a parameter here; dtype = "keep" saves memory and costs speed; '
        "an NVIDIA GPU needs pip install 'mlx[cuda]'",
        figures=figures,
    )


def _blas(report: blas.BlasReport) -> Finding:
    parts = [report.name, report.version, report.core, report.reason]
    says = ", ".join(part for part in parts if part)
    if report.threads:
        says += f", {report.threads} thread{'s' if report.threads > 1 else ''} a process"
    if report.name != "reference":
        level, advice = "ok", ""
    elif os.environ.get(blas.OVERRIDE):
        level, advice = "problem", f"unset {blas.OVERRIDE}, or let it name a library that works"
    else:
        level = "problem"
        advice = (
            "mlx computes with its slow reference BLAS: mend what is said above, or name a "
            f"library that exports cblas_sgemm in {blas.OVERRIDE}"
        )
    return Finding(
        name="blas",
        says=says,
        level=level,
        advice=advice,
        figures={"name": report.name, "core": report.core, "threads": report.threads},
    )


def _speed(report: blas.BlasReport) -> Finding:
    step_ms, verify_ms = _product_ms(1), _product_ms(32)
    gflop_per_s = 2 * 32 * 2048 * 2048 / verify_ms / 1e6
    slow = gflop_per_s < SLOW_GFLOP_PER_S
    advice = "far below what a CPU can do: the BLAS is slow"
    if report.active:
        advice = f"far below what this BLAS can do: is the machine busy? (load {_load():.1f})"
    return Finding(
        name="speed",
        says=f"float32 product of 32 rows with 2048 by 2048: {verify_ms:.2f} ms "
        f"({gflop_per_s:.0f} GFLOP/s), of one row: {step_ms:.2f} ms",
        level="ok" if not slow else "note" if report.active else "problem",
        advice=advice if slow else "",
        figures={"gflop_per_s": gflop_per_s, "row_1_ms": step_ms, "rows_32_ms": verify_ms},
    )


def _load() -> float:
    return os.getloadavg()[0]


def _product_ms(rows: int) -> float:
    """Milliseconds of x @ W.T with x [rows, 2048] and W [2048, 2048], as a linear layer does."""
    import mlx.core as mx

    x, weight = mx.ones((rows, 2048)), mx.ones((2048, 2048))
    mx.eval(x, weight)
    return 1e3 * min(_seconds(lambda: mx.eval(x @ weight.T)) for _ in range(9))


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _compiler(report: jit.JitReport) -> Finding:
    return Finding(
        name="compiler",
        says=f"mx.compile is {report}",
        level="ok" if report.active else "note",
        advice=""
        if report.active
        else "results are the same; with a working g++ some operations are fused",
        figures={"active": str(report.active).lower()},
    )


def _cache() -> Finding:
    folder = cache_dir()
    free = shutil.disk_usage(_existing(folder)).free
    here = (folder / "models" / SMOLLM2.name / "config.json").is_file()
    state = "is here" if here else f"is not fetched yet (dflashctl pull {SMOLLM2.name})"
    low = not here and free < _GIB
    return Finding(
        name="cache",
        says=f"{folder}, {free / _GIB:.1f} GiB free; {SMOLLM2.name} {state}",
        level="problem" if low else "ok",
        advice="free some space, or set DFLASHD_CACHE_DIR" if low else "",
        figures={"free_bytes": free},
    )


def _existing(folder: Path) -> Path:
    """``folder`` or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
