"""Real daemons for tests; each is stopped and checked afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .daemon_process import DaemonProcess
from .gateway_process import Gateway, free_port, section


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """A maker of daemons: ``make_daemon({model: flags}, {model: its TOML lines}, limit=value)``."""
    made: list[DaemonProcess] = []

    def make(
        models: dict[str, dict[str, Any]],
        sections: dict[str, str] | None = None,
        *,
        http: str = "",
        **limits: float,
    ) -> DaemonProcess:
        made.append(DaemonProcess(models, sections, http=http, **limits))
        return made[-1]

    yield make
    logs = [daemon.close() for daemon in made]
    assert not any("internal_error" in log for log in logs), logs


@pytest.fixture
def make_gateway(make_daemon: Callable[..., DaemonProcess]) -> Callable[..., Gateway]:
    """A maker of gateways: ``make_gateway({model: flags}, http_key=value)``."""

    def make(models: dict[str, dict[str, Any]], **http: Any) -> Gateway:
        port = free_port()
        return Gateway(make_daemon(models, http=section(port, **http)), port)

    return make


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[Gateway]:
    """One gateway for tests that leave nothing behind: model ``a``, and ``org/b`` never loaded."""
    port = free_port()
    daemon = DaemonProcess({"a": {}, "org/b": {}}, http=section(port))
    try:
        yield Gateway(daemon, port)
    finally:
        log = daemon.close()
    assert "internal_error" not in log, log
