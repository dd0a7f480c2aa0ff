"""A fast BLAS for mlx's CPU build on Linux.

mlx's Linux wheel links the reference BLAS, some fifty times slower than the machine. It calls
three functions of it; a library loaded globally *before* ``mlx.core`` that exports those three
is called instead. So :func:`prepare` comes first in every process that computes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ...protocol.paths import cache_dir
from . import blas_copy
from .blas_verdict import refusal
from .cpus import available_cpus

OVERRIDE = "DFLASHD_BLAS"
"""Environment: a path of a BLAS to use instead, or ``reference`` for the one mlx came with."""

SHARE = "DFLASHD_CPU_SHARE"
"""Environment: among how many computing processes the CPUs are shared, by default 1."""

_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasReport:
    """Which library computes mlx's matrix products on the CPU, and why that one.

    ``active``: we put it there. ``core`` is the CPU kernel OpenBLAS chose; 0 threads: unknown.
    """

    name: str
    reason: str
    active: bool = False
    path: Path | None = None
    version: str = ""
    core: str = ""
    threads: int = 0


def prepare(cache: Path | None = None) -> BlasReport:
    """Load the best BLAS that works here, once a process; raises RuntimeError if mlx came first.

    ``cache`` is where the library is kept, by default dflashd's cache directory.
    """
    return _prepare(cache or cache_dir())


@functools.cache
def _prepare(cache: Path) -> BlasReport:
    override = os.environ.get(OVERRIDE, "").strip()
    if sys.platform != "linux":
        return BlasReport(name="system", reason="mlx uses the system's own BLAS on this platform")
    if not _is_cpu_build():
        return BlasReport(name="built-in", reason="mlx is not its CPU wheel: its own BLAS is kept")
    if override == "reference":
        return BlasReport(name="reference", reason=f"{OVERRIDE}=reference asks for it")
    if "mlx.core" in sys.modules:
        raise RuntimeError(
            "dflashd.worker.machine.blas.prepare() must be called before mlx.core is imported: "
            "mlx has already bound the slow reference BLAS"
        )
    try:
        path = Path(override) if override else blas_copy.renamed_copy(cache)
        why_not = refusal(path, cache)
        if why_not:
            return BlasReport(name="reference", reason=why_not)
        library = _loaded(path)
    except (blas_copy.CopyFailed, OSError) as error:
        return BlasReport(name="reference", reason=str(error))
    return _report(library, path, chosen_by=OVERRIDE if override else blas_copy.PACKAGE)


def _is_cpu_build() -> bool:
    try:
        metadata.distribution("mlx-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def _loaded(path: Path) -> ctypes.CDLL:
    """Raises OSError: what loads in the trial may not in a process that holds a lot already."""
    if any(name in os.environ for name in _THREADS):
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    # Read once, while it is loaded; other libraries and children choose for themselves.
    os.environ["OPENBLAS_NUM_THREADS"] = str(_fair_threads())
    try:
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]


def _report(library: ctypes.CDLL, path: Path, *, chosen_by: str) -> BlasReport:
    if _address(ctypes.CDLL(None)) != _address(library):
        return BlasReport(
            name="other",
            reason="another library of this process already provides cblas_sgemm to mlx",
        )
    return BlasReport(
        name="openblas" if _text(library, "get_config") else path.name,
        reason=f"from {chosen_by}",
        active=True,
        path=path,
        version=_text(library, "get_config").removeprefix("OpenBLAS ").partition(" ")[0],
        core=_text(library, "get_corename"),
        threads=_threads(library),
    )


def _fair_threads() -> int:
    """Threads that never wait for a CPU: OpenBLAS's meet at every product and spin meanwhile.

    Two processes of two threads each on two CPUs decode some five times slower than two of one.
    So one CPU is left to everything else, and the rest is divided.
    """
    share = os.environ.get(SHARE, "1")
    return max(1, (available_cpus() - 1) // max(1, int(share) if share.isdecimal() else 1))


def _address(library: ctypes.CDLL) -> int | None:
    return ctypes.cast(library.cblas_sgemm, ctypes.c_void_p).value


def _text(library: ctypes.CDLL, name: str) -> str:
    """What OpenBLAS tells about itself; empty for another BLAS."""
    for prefix in (blas_copy.PREFIX, ""):
        function = getattr(library, f"{prefix}openblas_{name}", None)
        if function is not None:
            function.restype = ctypes.c_char_p
            return bytes(function() or b"").decode(errors="replace").strip()
    return ""


def _threads(library: ctypes.CDLL) -> int:
    for prefix in (blas_copy.PREFIX, ""):
        function = getattr(library, f"{prefix}openblas_get_num_threads", None)
        if function is not None:
            return int(function())
    return 0
