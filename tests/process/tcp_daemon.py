"""A real daemon that listens on tcp of the loopback, and keys for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflashd.protocol import Client
from dflashd.protocol.key_file import KeyFile, key_file_text, new_pair
from dflashd.supervisor.keys.client_keys import Role, allow
from dflashd.supervisor.keys.server_key import server_key

from .daemon_process import DaemonProcess
from .gateway_process import free_port


class TcpDaemon(DaemonProcess):
    """``keys``: name and role of each key that is allowed before the start."""

    def __init__(
        self, models: dict[str, dict[str, Any]], keys: dict[str, Role], tcp: str = ""
    ) -> None:
        self.tcp = tcp
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.first_keys = keys
        super().__init__(models)

    @property
    def folder(self) -> Path:
        """Where its keys are."""
        return self.state_dir / "keys"

    def write_config(self, models: list[str]) -> None:
        """Write the file the daemon reads, and the keys."""
        super().write_config(models)
        with self.config.open("a") as file:
            file.write(f'[tcp]\nlisten = ["{self.address}"]\n{self.tcp}\n')
        self.state_dir.mkdir(mode=0o700)
        for name, role in self.first_keys.items():
            self.allow(name, role)

    def key_of(self, name: str) -> Path:
        """Where the key file of a client is."""
        return self.home / f"{name}.key"

    def make_key(self, name: str, server: str | None = None) -> KeyFile:
        """A key that nobody allowed."""
        public, secret = new_pair()
        of = server or server_key(self.folder).public
        key = KeyFile(name=name, server=of, public=public, secret=secret)
        self.key_of(name).touch(mode=0o600)
        self.key_of(name).write_text(key_file_text(key))
        return key

    def allow(self, name: str, role: Role = "request") -> KeyFile:
        """A key that is allowed."""
        key = self.make_key(name)
        allow(self.folder, name, key.public, role)
        return key

    def remote(self, name: str, **options: Any) -> Client:
        """A client on tcp with that key."""
        options = {"timeout_s": 20, "wait_s": 0, **options}
        return Client(connect=self.address, key=self.key_of(name), **options)
