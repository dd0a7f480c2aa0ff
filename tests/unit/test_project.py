from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .. import module_graph

ROOT = Path(__file__).parents[2]
FOLDERS = ("protocol", "supervisor", "worker")
HEAVY = {"mlx", "mlx_lm", "transformers", "tokenizers", "huggingface_hub", "numpy"}


def modules_after(code: str) -> set[str]:
    """Names of all modules that a fresh process holds after ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "dflashd.protocol",
        "dflashd.supervisor.serve",
        "dflashd.supervisor.cli",
        "dflashd.supervisor.gateway.server",
        "dflashd.worker",
        "dflashd.worker.host.host",
    ],
)
def test_the_light_parts_start_without_the_model_libraries(module: str):
    """Client, daemon and command line never load mlx and its kin, however indirectly; a host
    leaves it to its engine's thread.
    """
    assert not modules_after(f"import {module}") & HEAVY


def test_the_daemon_starts_without_a_web_server():
    """HTTP is the gateway's: the daemon itself loads nothing of it, configured or not."""
    loaded = modules_after("import dflashd.supervisor.serve")
    assert not loaded & {"starlette", "uvicorn", "h11", "prometheus_client"}


def test_the_worker_does_not_know_the_supervisor():
    """A worker loads nothing of the supervisor."""
    loaded = modules_after("import dflashd.worker.process.process, dflashd.worker.pull")
    assert not {name for name in loaded if name.startswith("dflashd.supervisor")}


def test_every_package_is_installed():
    """pyproject.toml lists every folder with code, so that an installed dflashd is whole."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("dflashd", *path.parent.relative_to(ROOT).parts))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(listed) == found


def test_every_draft_is_installed():
    """The embedded drafts are package data, with their provenance."""
    drafts = ROOT / "worker" / "drafts"
    assert (drafts / "PROVENANCE.md").is_file()
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "drafts/**/*" in data["package-data"]["dflashd.worker"]


def test_the_drawn_architecture_is_the_real_one():
    """The picture in docs/architecture.md shows the folders' imports as they are."""
    assert module_graph.drawn() == module_graph.drawing(), "python -m tests.module_graph draws it"
