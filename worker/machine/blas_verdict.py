"""Whether a BLAS may be used on this CPU: tried once in a process of its own, then remembered."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

from ..memo import recall, remember

_CANARY = Path(__file__).with_name("blas_canary.py")
_CANARY_TIMEOUT_S = 60.0
_X86_FIELDS = ("vendor_id", "model name", "cpu family", "model", "stepping", "flags")
_ARM_FIELDS = ("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
_CPU_FIELDS = frozenset((*_X86_FIELDS, *_ARM_FIELDS))
"""What names a CPU and what it can do; not its clock or its number."""


def refusal(library: Path, cache_dir: Path) -> str:
    """Empty if ``library`` computes rightly on this CPU, else a sentence that says why not.

    A crash or a wrong result is remembered as firmly as a success. What may pass, such as a
    time-out on a busy machine, is not.
    """
    marker = cache_dir / "blas" / "verdicts" / f"{_key(library)}.json"
    remembered = recall(marker).get("refusal")
    if isinstance(remembered, str):
        return f"{remembered} (remembered in {marker})" if remembered else ""
    verdict, firm = _try(library)
    if firm:
        remember(marker, {"library": str(library), "cpu": cpu_name(), "refusal": verdict})
    return verdict


def _try(library: Path) -> tuple[str, bool]:
    """The verdict, and whether it will be the same next time."""
    command = [sys.executable, "-I", str(_CANARY), str(library)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CANARY_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{library} could not be tried: {error}", False
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        firm = name in {"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT"}
        return f"{library} crashed with {name} on this CPU in a trial", firm
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"{library} could not be loaded: {last}", False
    try:
        wrong = str(json.loads(done.stdout)["wrong"])
    except (ValueError, KeyError, TypeError):
        return f"{library} could not be tried: its trial printed {done.stdout[:80]!r}", False
    return (f"{library} failed its trial on this CPU: {wrong}" if wrong else ""), True


def _key(library: Path) -> str:
    """Changes with the library, the CPU, and the settings that choose OpenBLAS's kernel."""
    state = library.stat()
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith("OPENBLAS_"))
    parts = (str(library), state.st_size, state.st_mtime_ns, _cpu(), settings)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _cpu() -> tuple[str, ...]:
    """What identifies this kind of CPU: its name and its instruction sets."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return (platform.machine(), platform.processor())
    fields = (line.partition(":") for line in first.splitlines())
    return tuple(f"{k.strip()}={v.strip()}" for k, _, v in fields if k.strip() in _CPU_FIELDS)


def cpu_name() -> str:
    """The CPU's name for a person."""
    for field in _cpu():
        if field.startswith("model name="):
            return field.removeprefix("model name=")
    return platform.processor() or platform.machine()
