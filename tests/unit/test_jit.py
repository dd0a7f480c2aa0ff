from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="on a Mac kernels are Metal's")

PROBE = """
from dflashd.worker.machine import blas, jit
blas.prepare()
report = jit.prepare()
import mlx.core as mx
print(mx.compile(lambda x: mx.exp(x * 0) + x)(mx.array(2.0)).item())
print(report)
"""


def probe(cache: Path, path: str) -> list[str]:
    """What a process with this PATH computes with a compiled function, and its report."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "PATH": path, "DFLASHD_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.splitlines()


def compiler(folder: Path, script: str) -> str:
    """A PATH with a ``g++`` that is this shell script."""
    program = folder / "g++"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@linux_only
def test_without_a_compiler_compiled_functions_still_work(tmp_path: Path):
    """No g++ in PATH: the functions run uncompiled, and the report says so."""
    assert probe(tmp_path, "/nowhere") == ["3.0", "off: there is no g++ in PATH"]


@linux_only
def test_with_a_broken_compiler_compiled_functions_still_work(tmp_path: Path):
    """A g++ that answers but cannot compile would make every compiled function raise."""
    path = compiler(tmp_path, '[ "$1" = --version ] || { echo "no headers"; exit 1; }')
    assert probe(tmp_path, path) == ["3.0", "off: g++ does not work for mlx: no headers"]


@linux_only
def test_kernels_are_kept_where_only_we_can_write(tmp_path: Path):
    """Compiled kernels lie in our cache directory, not in a temporary one shared with others."""
    result, report = probe(tmp_path, os.environ["PATH"])
    assert result == "3.0"
    if shutil.which("g++") is None:
        assert report == "off: there is no g++ in PATH"
        return
    assert report.startswith("on: ")
    assert list((tmp_path / "jit").rglob("*.so"))
    assert (tmp_path / "jit").stat().st_mode & 0o777 == 0o700
