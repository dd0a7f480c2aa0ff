from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A whole run of the doctor, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dflashd.supervisor.cli", "doctor", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.fixture(scope="module")
def healthy() -> subprocess.CompletedProcess[str]:
    return doctor("--json")


def test_a_machine_that_works_is_well(healthy: subprocess.CompletedProcess[str]):
    """Nothing is a problem where the tests run, and the exit status says so."""
    account = json.loads(healthy.stdout)
    problems = [finding for finding in account["findings"] if finding["level"] == "problem"]
    assert (account["ok"], problems, healthy.returncode) == (True, [], 0)


def test_it_looks_at_everything_that_matters(healthy: subprocess.CompletedProcess[str]):
    """BLAS, device, dtype, compiler, versions, files, memory, sockets and measured speed."""
    found = findings(healthy)
    assert {"blas", "device", "compiler", "versions", "open files", "sockets"} <= set(found)
    assert found["device"]["figures"]["dtype"]
    assert found["machine"]["figures"]["memory_available_bytes"] > 0
    assert found["speed"]["figures"]["gflop_per_s"] > 0
    assert found["versions"]["figures"]["mlx"]


@pytest.mark.skipif(sys.platform != "linux", reason="mlx brings its own BLAS elsewhere")
def test_a_slow_blas_is_a_problem_with_a_way_out():
    """The reference BLAS is told as a problem, with what to do, and as the exit status."""
    done = doctor("--json", DFLASHD_BLAS="reference")
    blas = findings(done)["blas"]
    assert (done.returncode, blas["level"]) == (1, "problem")
    assert "DFLASHD_BLAS" in blas["advice"]


def test_a_runtime_directory_too_long_for_sockets_is_a_problem():
    """A path that no socket can have is found before the daemon stumbles over it."""
    done = doctor("--json", DFLASHD_RUNTIME_DIR="/tmp/" + "x" * 100)
    sockets = findings(done)["sockets"]
    assert (done.returncode, sockets["level"]) == (1, "problem")
    assert "DFLASHD_RUNTIME_DIR" in sockets["says"]


def test_a_person_reads_one_paragraph_per_finding(tmp_path: Path):
    """Without --json each finding is a line with its state, and advice below it."""
    done = doctor(PATH=str(tmp_path))
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok      versions") for line in lines)
    compiler = next(i for i, line in enumerate(lines) if "compiler" in line)
    if sys.platform == "linux":
        assert lines[compiler].startswith("note")
        assert "→" in lines[compiler + 1]
