"""What every test needs before it starts: a fast BLAS, before anything imports mlx."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from dflashd.worker import blas, jit

blas.prepare()
jit.prepare(private=False)


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A directory whose socket paths stay below the system's limit; removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dfd", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
