"""Real daemons for tests; each is stopped and checked afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .daemon_process import DaemonProcess


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """A maker of daemons: ``make_daemon({model: flags}, {model: its TOML lines}, limit=value)``."""
    made: list[DaemonProcess] = []

    def make(
        models: dict[str, dict[str, Any]],
        sections: dict[str, str] | None = None,
        **limits: float,
    ) -> DaemonProcess:
        made.append(DaemonProcess(models, sections, **limits))
        return made[-1]

    yield make
    logs = [daemon.close() for daemon in made]
    assert not any("internal_error" in log for log in logs), logs
