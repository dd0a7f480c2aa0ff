"""The systemd unit (man 5 systemd.service, systemd.exec, systemd.kill)."""

from __future__ import annotations

from collections.abc import Sequence

from ..exit_statuses import EXIT_CONFIGURATION, EXIT_USAGE
from .plan import ServicePlan

WATCHDOG_S = 30
STOP_S = 90
"""Longer than the daemon's own longest stop at its default limits."""

START_S = 60
OPEN_FILES = 65_536

CONFINED = "PrivateTmp=yes\nProtectSystem=full\n"
"""A user's own manager cannot do it. Stricter is not possible: models lie anywhere in a home."""


def unit(plan: ServicePlan) -> str:
    """The unit's text. Of a system unit, ``plan.user`` names whom it runs as."""
    identity = f"User={plan.user}\n" if plan.system else ""
    target = "multi-user.target" if plan.system else "default.target"
    return f"""\
[Unit]
Description=dflashd, several DFlash models live on one machine
Documentation=man:systemd.service(5)
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={_command(plan.command)}
ExecReload=kill -HUP $MAINPID
{identity}Environment=PYTHONUNBUFFERED=1
{_environment(plan.environment)}\
Restart=on-failure
RestartSec=2
RestartPreventExitStatus={EXIT_USAGE} {EXIT_CONFIGURATION}
TimeoutStartSec={START_S}
TimeoutStopSec={STOP_S}
WatchdogSec={WATCHDOG_S}
# Workers are stopped by the daemon, in order; what is left after the limit is killed.
KillMode=mixed
LimitNOFILE={OPEN_FILES}
LimitCORE=0
UMask=0077
# Out of memory takes a worker, and the daemon says so, before it takes the daemon.
OOMPolicy=continue
NoNewPrivileges=yes
{CONFINED if plan.system else ""}\
RestrictSUIDSGID=yes
LockPersonality=yes
RestrictRealtime=yes
SystemCallArchitectures=native

[Install]
WantedBy={target}
"""


def _command(words: Sequence[str]) -> str:
    return " ".join(_quoted(word).replace("$", "$$") for word in words)


def _environment(values: dict[str, str]) -> str:
    return "".join(f"Environment={_quoted(f'{name}={text}')}\n" for name, text in values.items())


def _quoted(word: str) -> str:
    """One word of a unit file: % is its own, and so are quotes and backslashes.

    And $ in a command line, but not in a variable's value.
    """
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    plain = escaped == word and word and not any(c.isspace() or c in "';#" for c in word)
    return word if plain else f'"{escaped}"'
