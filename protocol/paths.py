"""Where the daemon's sockets, state and caches live on this machine."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import DflashError, ErrorCode

PATH_LIMIT_BYTES = 100
"""Longest socket path that works on every system we support, with a margin."""


def runtime_dir() -> Path:
    """Return the directory of sockets and lock: ``DFLASHD_RUNTIME_DIR``, else XDG, else state."""
    chosen = _from_environment("DFLASHD_RUNTIME_DIR")
    if chosen is not None:
        return chosen
    session = _from_environment("XDG_RUNTIME_DIR")
    return session / "dflashd" if session is not None else _home_dir()


def state_dir() -> Path:
    """Return the directory of logs and registries: ``DFLASHD_STATE_DIR``, else the system's."""
    return _from_environment("DFLASHD_STATE_DIR") or _home_dir()


def cache_dir() -> Path:
    """Return the directory of fetched models: ``DFLASHD_CACHE_DIR``, else the system's."""
    chosen = _from_environment("DFLASHD_CACHE_DIR")
    if chosen is not None:
        return chosen
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "dflashd"
    return (_from_environment("XDG_CACHE_HOME") or _home() / ".cache") / "dflashd"


def _home_dir() -> Path:
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "dflashd"
    return (_from_environment("XDG_STATE_HOME") or _home() / ".local" / "state") / "dflashd"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise DflashError(
            ErrorCode.bad_request, "this user has no home directory: set HOME or DFLASHD_*_DIR"
        ) from error


def _from_environment(variable: str) -> Path | None:
    # A relative path would name another place after every chdir; XDG says to ignore it.
    value = os.environ.get(variable, "")
    try:
        path = Path(value).expanduser() if value else None
    except RuntimeError as error:
        raise DflashError(ErrorCode.bad_request, f"{variable} ({value}): {error}") from error
    if path is not None and not path.is_absolute():
        if variable.startswith("XDG_"):
            return None
        raise DflashError(ErrorCode.bad_request, f"{variable} must be an absolute path: {value}")
    return path


def full_path(socket: Path) -> Path:
    """Where a daemon puts a socket while it has no room for another connection."""
    return socket.with_suffix(".full")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The three sockets in one runtime directory.

    Raises DflashError(bad_request) when a path would be too long for a socket.
    """

    runtime_dir: Path

    def __post_init__(self) -> None:
        longest = max(len(os.fsencode(path)) for path in self.paths)
        if longest > PATH_LIMIT_BYTES:
            raise DflashError(
                ErrorCode.bad_request,
                f"socket paths in {self.runtime_dir} are up to {longest} bytes; the limit is "
                f"{PATH_LIMIT_BYTES}: set DFLASHD_RUNTIME_DIR to a shorter directory",
            )

    @property
    def requests(self) -> str:
        """Return the URL clients send requests to."""
        return self._url("requests.sock")

    @property
    def control(self) -> str:
        """Return the URL of the control channel."""
        return self._url("control.sock")

    @property
    def workers(self) -> str:
        """Return the URL workers connect to."""
        return self._url("workers.sock")

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the socket files: requests, control, workers."""
        names = ("requests.sock", "control.sock", "workers.sock")
        return tuple(self._path(name) for name in names)

    def _path(self, name: str) -> Path:
        return self.runtime_dir.absolute() / name

    def _url(self, name: str) -> str:
        return f"ipc://{self._path(name)}"


@dataclass(frozen=True, slots=True)
class RemoteEndpoints:
    """A daemon's one address on tcp, where everything is asked that the key may ask.

    Raises DflashError(bad_request) for what is no address.
    """

    address: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"tcp://[^\s/;]+:[0-9]{1,5}", self.address):
            raise DflashError(
                ErrorCode.bad_request, f"no address of a daemon: {self.address} (tcp://HOST:PORT)"
            )

    @property
    def requests(self) -> str:
        """Return the URL clients send requests to."""
        return self.address

    @property
    def control(self) -> str:
        """Return the URL of the control channel."""
        return self.address


def endpoints_of(runtime_dir_: Path | None, address: str | None) -> Endpoints | RemoteEndpoints:
    """Where the daemon is that a directory or an address means; by default the user's own."""
    if address is None:
        return Endpoints(runtime_dir_ or runtime_dir())
    if runtime_dir_ is not None:
        raise DflashError(
            ErrorCode.bad_request, "a daemon has a directory here or an address elsewhere: name one"
        )
    return RemoteEndpoints(address)
