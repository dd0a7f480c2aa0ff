"""What tests share. A fast BLAS comes first: before anything imports mlx."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from dflashd.protocol.paths import cache_dir
from dflashd.worker.checkpoints.embedded import SMOLLM2
from dflashd.worker.checkpoints.embedded_folder import embedded_folder
from dflashd.worker.machine import blas, jit, open_files

blas.prepare()
jit.prepare(private=False)

# Two busy cores make any deadline a coin toss; in CI the same examples run every time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that none of them is what everybody waits for at last;
    a folder's in turn with another's, since those of some compute and those of others wait.

    Within a file the order stays; every process of a parallel run comes to the same one.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    files = sorted({item.path for item in items}, key=lambda path: (-slow[path], path))
    turns = Counter[Path]()
    place: dict[Path, tuple[bool, int]] = {}
    for path in files:
        place[path] = (not slow[path], turns[path.parent])
        turns[path.parent] += 1
    items.sort(key=lambda item: (place[item.path], item.path))


def pytest_collection_finish() -> None:
    """What is imported by now stays: collections that tests ask for need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A directory whose socket paths stay below the system's limit; removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dfd", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded model, fetched once and then kept in the user's cache."""
    return embedded_folder(SMOLLM2, cache_dir(), lambda *_: None)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_folder: Path) -> Any:
    """The embedded model's tokenizer, as mlx-lm wraps it."""
    with open_files.kept():
        from mlx_lm.tokenizer_utils import load
    return load(smollm2_folder)
