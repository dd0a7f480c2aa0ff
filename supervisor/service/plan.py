"""What is to run as a service, for whom, and with which files."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ..config.file import load

_KEPT = ("DFLASHD_RUNTIME_DIR", "DFLASHD_STATE_DIR", "DFLASHD_CACHE_DIR", "HF_HOME", "HF_HUB_CACHE")
"""Variables that say where things are: a service does not inherit them from the shell."""


SERVE = (sys.executable, "-P", "-m", "dflashd.supervisor.serve", "serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """One service: the command and its environment, where launchd puts its output, and for whom."""

    command: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    user: str
    system: bool


def service_plan(config: Path, *, system: bool) -> ServicePlan:
    """The service that serves ``config``. Raises ConfigError where that cannot be used."""
    return ServicePlan(
        command=(*SERVE, "--config", str(config.resolve())),
        environment={name: os.environ[name] for name in _KEPT if os.environ.get(name)},
        log=load(config).state_dir / "dflashd.log",
        # Whoever calls sudo means to run it as himself: root has no models.
        user=os.environ.get("SUDO_USER") or getpass.getuser(),
        system=system,
    )
