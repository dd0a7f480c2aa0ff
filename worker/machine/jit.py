"""mlx's run-time compiler on a CPU: used where it works, switched off where it does not.

``mx.compile`` on a CPU writes C++, calls ``g++`` and loads the result. Without a compiler mlx
falls back by itself; with one that is broken (no headers, a disk mounted noexec) every compiled
function raises. And it writes below the shared temporary directory, where another user could
leave a library for us to load.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.paths import cache_dir
from .private import private_folder

if TYPE_CHECKING:
    import mlx.core as mx

COMPILER = "g++"
"""What mlx calls, by this name, from PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JitReport:
    """Whether compiled functions are used. ``reason`` says why, or why not."""

    active: bool
    reason: str

    def __str__(self) -> str:
        return f"{'on' if self.active else 'off'}: {self.reason}"


def prepare(*, private: bool = True) -> JitReport:
    """Try the compiler once and switch ``mx.compile`` off if it fails; after ``blas.prepare``.

    ``private`` keeps the kernels in dflashd's cache directory, where only we can write. That sets
    ``TMPDIR`` for the whole process: a process that is not ours says no.
    """
    import mlx.core as mx

    if mx.default_device().type != mx.DeviceType.cpu:
        return JitReport(active=True, reason="compiled functions run on the GPU")
    if "MLX_DISABLE_COMPILE" in os.environ:
        return JitReport(active=False, reason="MLX_DISABLE_COMPILE is set")
    if shutil.which(COMPILER) is None:
        mx.disable_compile()
        return JitReport(active=False, reason=f"there is no {COMPILER} in PATH")
    try:
        if private:
            os.environ["TMPDIR"] = str(private_folder(cache_dir() / "jit"))
        mx.eval(mx.compile(_trial)(mx.array([1.0, 4.0])))
    except (OSError, RuntimeError) as error:
        mx.disable_compile()
        said = str(error).rpartition("the output is: ")[2].strip().splitlines()
        why = said[0][:300] if said else "it said nothing"
        return JitReport(active=False, reason=f"{COMPILER} does not work for mlx: {why}")
    return JitReport(active=True, reason=f"{shutil.which(COMPILER)}")


def _trial(x: mx.array) -> mx.array:
    return x * x + x  # two operations: a single one is not compiled
