from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def demo(smollm2_folder: Path) -> subprocess.CompletedProcess[str]:
    """One short run of the demo, as a user without a terminal sees it."""
    return subprocess.run(
        [sys.executable, "examples/demo.py", "--json", "--tokens", "16"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def account(demo: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(demo.stdout.splitlines()[-1])


def test_every_claim_of_the_demo_is_true(demo: subprocess.CompletedProcess[str]):
    """Two models, two workers, one time, nothing unloaded, nothing left: exit status 0."""
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "  NO  " not in demo.stdout


def test_its_json_tells_what_it_saw(account: dict[str, Any]):
    """The last line holds each model's facts, with numbers that can be so."""
    assert account["ok"] is True
    assert account["seconds"] > 0
    names = [model["name"] for model in account["models"]]
    assert names == ["smollm2-135m", "smollm2-135m-1l"]
    for model in account["models"]:
        assert model["engine"] == "dflash"
        assert 0 < model["tokens"] <= 16
        assert model["tokens_per_s"] > 0
        assert model["plain_tokens_per_s"] > 0
        assert model["acceptance_length_tokens"] >= 1
        assert model["ttft_s"] > 0
        assert model["cached_tokens"] >= 0
        assert model["memory_bytes"] > 100e6
        assert model["answered_at_the_same_time"] is True
    assert len({model["pid"] for model in account["models"]}) == 2


def test_its_processes_are_gone(account: dict[str, Any]):
    """The worker processes that the demo names do not run any more."""
    for model in account["models"]:
        with pytest.raises(ProcessLookupError):
            os.kill(model["pid"], 0)


def test_without_a_terminal_it_prints_plain_labelled_lines(
    demo: subprocess.CompletedProcess[str],
):
    """A pipe gets no escape sequences, and each line says which model speaks."""
    assert "\x1b" not in demo.stdout
    lines = demo.stdout.splitlines()
    assert any(line.startswith("smollm2-135m    │ ") for line in lines)
    assert any(line.startswith("smollm2-135m-1l │ ") for line in lines)
