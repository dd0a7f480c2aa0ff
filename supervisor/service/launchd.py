"""The launchd agent (man 5 launchd.plist)."""

from __future__ import annotations

import plistlib
from typing import Any

from .plan import ServicePlan

LABEL = "org.dflashd.dflashd"
OPEN_FILES = 65_536
EXIT_S = 90
"""From SIGTERM to SIGKILL: longer than the daemon's own longest stop at its default limits."""


def plist(plan: ServicePlan) -> bytes:
    """The property list's text."""
    limits = {"NumberOfFiles": OPEN_FILES}
    values: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(plan.command),
        "EnvironmentVariables": {"PYTHONUNBUFFERED": "1", **plan.environment},
        "RunAtLoad": True,
        # An orderly end means stay down. launchd knows no status that forbids a restart, so a
        # broken configuration is tried again, as seldom as ThrottleInterval says.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 30,
        # Anything else throttles decoding, as users of other servers found.
        "ProcessType": "Interactive",
        "ExitTimeOut": EXIT_S,
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
        "Umask": 0o077,
        "StandardOutPath": str(plan.log),
        "StandardErrorPath": str(plan.log),
    }
    if plan.system:
        values["UserName"] = plan.user
    return plistlib.dumps(values)
