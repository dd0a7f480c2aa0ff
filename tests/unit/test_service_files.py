"""The files that make systemd and launchd run the daemon."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from dflashd.supervisor.errors import ConfigError
from dflashd.supervisor.service import systemd
from dflashd.supervisor.service.installed import Service, ServiceError
from dflashd.supervisor.service.plan import ServicePlan, service_plan

ODD = '/opt/a b/100%/$HOME\'s "x"\\.toml'


def plan_of(*, system: bool = False) -> ServicePlan:
    return ServicePlan(
        command=("/bin/sh", "-c", ODD),
        environment={"DFLASHD_STATE_DIR": "/srv/state $1 100%"},
        log=Path("/srv/log"),
        user="root",
        system=system,
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("system", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, *, system: bool) -> None:
    """The unit passes systemd's own verification without a warning, odd paths included."""
    file = tmp_path / "dflashd.service"
    file.write_text(systemd.unit(plan_of(system=system)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_words_reach_the_program_as_they_are() -> None:
    """Spaces, quotes, backslashes and systemd's own % and $ are escaped, $ in commands only."""
    unit = systemd.unit(plan_of())
    expected = '"/opt/a b/100%%/$$HOME\'s \\"x\\"\\\\.toml"'
    assert f"ExecStart=/bin/sh -c {expected}\n" in unit
    assert 'Environment="DFLASHD_STATE_DIR=/srv/state $1 100%%"\n' in unit


def test_a_unit_says_what_the_daemon_relies_on() -> None:
    """Readiness, watchdog, reload, order of stopping, and no restart of a broken configuration."""
    lines = set(systemd.unit(plan_of()).splitlines())
    assert {
        "Type=notify",
        "WatchdogSec=30",
        "ExecReload=kill -HUP $MAINPID",
        "KillMode=mixed",
        "Restart=on-failure",
        "RestartPreventExitStatus=2 78",
        "LimitNOFILE=65536",
        "NoNewPrivileges=yes",
        "WantedBy=default.target",
    } <= lines


def test_a_system_unit_names_its_user_and_is_confined() -> None:
    """A machine's unit runs as the one who installed it, and may not write to the system."""
    lines = set(systemd.unit(plan_of(system=True)).splitlines())
    assert {"User=root", "ProtectSystem=full", "WantedBy=multi-user.target"} <= lines


def test_a_launchd_agent_is_interactive_and_stays_down_when_asked() -> None:
    """Decoding is not throttled, a failure restarts, an orderly end does not."""
    values = plistlib.loads(Service(system=False, macos=True).text(plan_of()))
    assert values["ProgramArguments"] == ["/bin/sh", "-c", ODD]
    assert values["ProcessType"] == "Interactive"
    assert values["KeepAlive"] == {"SuccessfulExit": False}
    assert values["SoftResourceLimits"] == {"NumberOfFiles": 65_536}
    assert values["StandardErrorPath"] == "/srv/log"
    assert values["EnvironmentVariables"]["DFLASHD_STATE_DIR"] == "/srv/state $1 100%"


def test_a_configuration_that_cannot_be_used_is_not_installed(tmp_path: Path) -> None:
    """Nobody learns at the next boot that a service never could start."""
    file = tmp_path / "c.toml"
    file.write_text("[daemon]\nnonsense = 1\n")
    with pytest.raises(ConfigError, match="nonsense"):
        service_plan(file, system=False)


def test_a_plan_runs_this_python_on_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service serves the named file, wherever it is started, as the user who asked by sudo."""
    monkeypatch.setenv("SUDO_USER", "somebody")
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('[daemon]\nstate_dir = "state"\n')
    plan = service_plan(Path("c.toml"), system=True)
    assert plan.command[-2:] == ("--config", str(tmp_path / "c.toml"))
    assert plan.user == "somebody"
    assert plan.environment["HF_HOME"] == "/models"
    assert plan.log == tmp_path / "state" / "dflashd.log"


def test_nothing_is_left_where_no_service_manager_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container or through su: it is said what to do, and no unit stays."""
    (program := tmp_path / "systemctl").write_text(
        "#!/bin/sh\necho 'Failed to connect to bus: No such file or directory' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    service = Service(system=False, macos=False)
    with pytest.raises(ServiceError, match="enable-linger"):
        service.install(plan_of())
    assert not service.file.exists()
