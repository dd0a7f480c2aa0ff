"""Settings of this folder's tests, and a daemon to talk to."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from .scripted_daemon import ScriptedDaemon, short_directory

# A loaded machine is no failure.
settings.register_profile("protocol", deadline=None)
settings.load_profile("protocol")


@pytest.fixture
def runtime_dir() -> Generator[Path]:
    """A runtime directory nobody listens in."""
    with short_directory() as path:
        yield path


@pytest.fixture
def daemon(runtime_dir: Path) -> Generator[ScriptedDaemon]:
    """A scripted daemon that listens in ``runtime_dir``."""
    with ScriptedDaemon(runtime_dir) as running:
        yield running
