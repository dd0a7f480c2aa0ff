"""Real daemons for tests; each is stopped and checked afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .daemon_process import DaemonProcess
from .gateway_process import Gateway, GatewayDaemon, free_port


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


@pytest.fixture
def make_gateway() -> Iterator[Callable[..., Gateway]]:
    """A maker of gateways: ``make_gateway({model: flags}, http_key=value)``."""
    made: list[GatewayDaemon] = []

    def make(models: dict[str, dict[str, Any]], **http: Any) -> Gateway:
        made.append(GatewayDaemon(models, free_port(), http))
        return Gateway(made[-1])

    yield make
    logs = [daemon.close() for daemon in made]
    assert not any("internal_error" in log for log in logs), logs


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[DaemonProcess]:
    """One daemon for tests that leave nothing behind: ``a`` answers, ``broken`` cannot load."""
    broken = {"load_error": ["load_failed", "no such file"]}
    daemon = DaemonProcess({"a": {}, "broken": broken})
    yield daemon
    log = daemon.close()
    assert "internal_error" not in log, log


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[Gateway]:
    """One gateway for tests that leave nothing behind: model ``a``, and ``org/b`` never loaded."""
    yield from _gateway({"a": {}, "org/b": {}})


@pytest.fixture(scope="module")
def behaving_gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """One gateway for tests that leave nothing behind: a model for each of the file's
    ``BEHAVIOURS``.
    """
    yield from _gateway(request.module.BEHAVIOURS)


def _gateway(models: dict[str, dict[str, Any]]) -> Iterator[Gateway]:
    daemon = GatewayDaemon(models, free_port(), {})
    try:
        yield Gateway(daemon)
    finally:
        log = daemon.close()
    assert "internal_error" not in log, log
