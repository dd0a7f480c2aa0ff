"""A real daemon with its HTTP gateway, for tests."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from dflashd.protocol.messages import ServiceStatus

from .daemon_process import DaemonProcess, wait_for


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class GatewayDaemon(DaemonProcess):
    """A daemon whose configuration has ``[http]`` with these keys."""

    def __init__(
        self,
        models: dict[str, dict[str, Any]],
        port: int,
        http: dict[str, Any],
        **limits: float,
    ) -> None:
        self.port = port
        self.http = http
        super().__init__(models, None, **limits)

    def write_config(self, models: list[str]) -> None:
        """Write the file the daemon reads."""
        super().write_config(models)
        with self.config.open("a") as file:
            file.write(section(self.port, **self.http))


class Gateway:
    """The gateway of a daemon, and plain HTTP to it."""

    def __init__(self, daemon: GatewayDaemon) -> None:
        self.daemon = daemon
        self.port = daemon.port
        self.url = f"http://127.0.0.1:{daemon.port}"
        wait_for("the gateway listens", self.listens)

    def listens(self) -> bool:
        """Whether somebody is there."""
        try:
            return self.get("/health/live")[0] == 200
        except OSError:
            return False

    def service(self) -> ServiceStatus:
        """What the daemon says of it."""
        (service,) = self.daemon.status().services
        return service

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a GET."""
        return self.send("GET", path, None, **headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of a POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers}
        status, got, text = self.send("POST", path, data, **sent)
        return status, got, json.loads(text)

    def send(
        self, method: str, path: str, data: bytes | None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def raw(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    @property
    def log(self) -> str:
        """What the gateway wrote."""
        path: Path = self.daemon.state_dir / "logs" / "_http.log"
        return path.read_text()


def section(port: int, **fields: float | str) -> str:
    """The configuration that starts it."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["[http]", f"port = {port}", *lines]) + "\n"
