"""What the supervisor tells a worker before its first message: the environment."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Self

import msgspec

from ...protocol.messages import Name
from ..errors import ConfigurationError
from ..loop.watchdog import HANG_S

LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Who this worker is, whom it serves, and the proof that it may."""

    endpoint: str
    worker: str
    epoch: int
    secret: bytes
    supervisor_pid: int
    hang_s: float
    """A standstill of the engine for so long ends the process."""

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self:
        """Read ``environ`` and remove the secret from it, so that no child inherits it.

        Raises ConfigurationError that names the variable.
        """
        return cls(
            endpoint=_endpoint(environ),
            worker=_name(environ, "DFLASHD_WORKER"),
            epoch=_positive(environ, "DFLASHD_EPOCH"),
            secret=_secret(environ),
            supervisor_pid=_positive(environ, "DFLASHD_SUPERVISOR_PID"),
            hang_s=_seconds(environ, "DFLASHD_HANG_S", HANG_S),
        )

    @property
    def routing_id(self) -> bytes:
        """This incarnation's name on the workers socket."""
        return f"{self.worker}-{self.epoch}".encode()


def _required(environ: MutableMapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigurationError(f"{name} is not set: a worker is started by dflashd, not by hand")
    return value


def _endpoint(environ: MutableMapping[str, str]) -> str:
    value = _required(environ, "DFLASHD_WORKERS")
    if not value.startswith("ipc://"):
        raise ConfigurationError("DFLASHD_WORKERS is not an ipc:// address")
    return value


def _secret(environ: MutableMapping[str, str]) -> bytes:
    value = _required(environ, "DFLASHD_SECRET")
    del environ["DFLASHD_SECRET"]
    try:
        secret = bytes.fromhex(value)
    except ValueError:
        raise ConfigurationError("DFLASHD_SECRET is not hexadecimal") from None
    if not 16 <= len(secret) <= 64:
        raise ConfigurationError("DFLASHD_SECRET does not have 16 to 64 bytes")
    return secret


def _name(environ: MutableMapping[str, str], name: str) -> str:
    try:
        checked: str = msgspec.convert(_required(environ, name), Name)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{name} is not a worker's name: {error}") from None
    return checked


def _positive(environ: MutableMapping[str, str], name: str) -> int:
    value = _required(environ, name)
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= 2**53):
        raise ConfigurationError(f"{name} is not a positive number")
    return int(value)


def _seconds(environ: MutableMapping[str, str], name: str, default_s: float) -> float:
    try:
        seconds = float(environ.get(name, default_s))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_S:
        raise ConfigurationError(f"{name} is not a number of seconds up to {LONGEST_S:g}")
    return seconds
