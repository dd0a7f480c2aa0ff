"""The service as the machine's service manager has it: installed, removed, asked."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import launchd, systemd
from .plan import ServicePlan

COMMAND_S = 120.0
"""A manager waits for the service to start or stop; longer than either may take."""

UNIT = "dflashd.service"

_NO_MANAGER = (
    " (no systemd answers for this user: log in as that user, not through su or in a container; "
    "or call `loginctl enable-linger` once; or use --system with root's rights; "
    "or run `dflashd serve` under what starts things here)"
)


class ServiceError(Exception):
    """The service manager refused, or is not there; its words are the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One place for one service: systemd's or launchd's, the user's or the machine's."""

    system: bool
    macos: bool = sys.platform == "darwin"

    @property
    def file(self) -> Path:
        """Where its unit or property list belongs."""
        if self.macos:
            library = Path("/Library/LaunchDaemons")
            folder = library if self.system else Path.home() / "Library" / "LaunchAgents"
            return folder / f"{launchd.LABEL}.plist"
        if self.system:
            return Path("/etc/systemd/system") / UNIT
        configured = os.environ.get("XDG_CONFIG_HOME")
        base = Path(configured) if configured else Path.home() / ".config"
        return base / "systemd" / "user" / UNIT

    def text(self, plan: ServicePlan) -> bytes:
        """The file's content."""
        return launchd.plist(plan) if self.macos else systemd.unit(plan).encode()

    def install(self, plan: ServicePlan) -> None:
        """Write the file and start the service, now and at each login or boot.

        Raises:
            ServiceError: with the manager's words; the file stays, so that it can be looked at,
                except where no manager answers: then nothing is changed.
        """
        if not self.macos:
            self._run("show", "--property=Version")
        _replace(self.file, self.text(plan))
        if self.macos:
            with contextlib.suppress(ServiceError):  # it may not have been there
                self._run("bootout", f"{self._domain}/{launchd.LABEL}")
            self._run("bootstrap", self._domain, str(self.file))
        else:
            self._run("daemon-reload")
            self._run("enable", UNIT)
            self._run("restart", UNIT)

    def uninstall(self) -> bool:
        """Stop the service and remove its file; whether there was one. Raises ServiceError."""
        if not self.file.exists():
            return False
        if self.macos:
            self._run("bootout", f"{self._domain}/{launchd.LABEL}")
            self.file.unlink()
        else:
            self._run("disable", "--now", UNIT)
            self.file.unlink()
            self._run("daemon-reload")
        return True

    def status(self) -> str:
        """What the manager says of it. Raises ServiceError."""
        if self.macos:
            return self._run("print", f"{self._domain}/{launchd.LABEL}")
        return self._run("status", "--no-pager", "--lines=5", UNIT, ok=(0, 3))

    @property
    def _domain(self) -> str:
        return "system" if self.system else f"gui/{os.getuid()}"

    def _run(self, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
        name = "launchctl" if self.macos else "systemctl"
        program = shutil.which(name)
        if program is None:
            raise ServiceError(
                f"{name} is not on this machine: `dflashctl service print` shows "
                "what another service manager needs to know"
            )
        scope = [] if self.macos or self.system else ["--user"]
        command = [program, *scope, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ServiceError(f"{' '.join(command)} did not end in {COMMAND_S:.0f} s") from None
        if done.returncode not in ok:
            words = " ".join((done.stderr or done.stdout).split())[:1000]
            hint = _NO_MANAGER if "onnect to" in words else ""
            raise ServiceError(f"{' '.join(command)} failed: {words or done.returncode}{hint}")
        return done.stdout


def _replace(file: Path, content: bytes) -> None:
    """Write whole or not at all: a manager may read at any moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
