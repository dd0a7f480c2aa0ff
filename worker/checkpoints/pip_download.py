"""One wheel from the Python package index, fetched with this Python's pip, with progress.

pip is used, not a download of our own, because it knows the user's index, mirror and proxy.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from ...protocol import lifeline
from ...protocol.errors import DflashError, ErrorCode
from ..errand import Progress

_LOOK_EVERY_S = 0.2

# pip as a child that cannot outlive us: a worker killed while it downloads leaves nothing behind.
_PIP = f"""
import runpy, sys
from {lifeline.__name__} import hold
hold(int(sys.argv.pop(1)))
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def pip_download(
    requirement: str,
    folder: Path,
    size_bytes: int,
    progress: Progress,
) -> Path:
    """The one wheel of ``requirement``, in ``folder`` (empty before); raises DflashError."""
    if importlib.util.find_spec("pip") is None:
        raise DflashError(
            ErrorCode.load_failed,
            f"{sys.executable} has no pip to fetch {requirement} with; install it "
            f"('{sys.executable} -m ensurepip', or 'uv pip install pip' in an environment "
            "that uv made)",
        )
    temporary = folder / "tmp"
    temporary.mkdir()
    log = folder / "pip.log"
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-P", "-c", _PIP, str(os.getpid()), "download", *options]
    command += ["--progress-bar=off", "--timeout=30", "--retries=2", "-d", str(folder)]
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    with child:
        try:
            status = _watch(child, folder, size_bytes, progress)
        finally:
            child.kill()
    wheels = sorted(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise DflashError(
            ErrorCode.not_found, f"pip could not fetch {requirement}: {_last_error(log)}"
        )
    return wheels[0]


def _watch(
    child: subprocess.Popen[bytes],
    folder: Path,
    size_bytes: int,
    progress: Progress,
) -> int:
    """The child's exit status; meanwhile the largest file tells how far the download is."""
    told = -1
    while True:
        done = min(_largest_bytes(folder), size_bytes)
        if done != told:
            progress("download", done, size_bytes, "bytes")
            told = done
        try:
            return child.wait(timeout=_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            continue


def _largest_bytes(folder: Path) -> int:
    largest = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(path, name)).st_size)
            except OSError:
                continue  # pip moved it meanwhile
    return largest


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    if any("NewConnectionError" in line or "timed out" in line for line in lines):
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or [line for line in lines if line] or ["it said nothing"])[-1][:400]
