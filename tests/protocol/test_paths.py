"""Where things live, and that a bad place is refused at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.paths import Endpoints, cache_dir, runtime_dir, state_dir

VARIABLES = (
    "DFLASHD_RUNTIME_DIR",
    "DFLASHD_STATE_DIR",
    "DFLASHD_CACHE_DIR",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/u")


def test_our_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """DFLASHD_… names each directory, whatever the system says."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, f"/{variable}")
    assert runtime_dir() == Path("/DFLASHD_RUNTIME_DIR")
    assert state_dir() == Path("/DFLASHD_STATE_DIR")
    assert cache_dir() == Path("/DFLASHD_CACHE_DIR")


def test_session_directory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets go below XDG_RUNTIME_DIR where there is one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert runtime_dir() == Path("/run/user/1000/dflashd")


@pytest.mark.parametrize(
    ("platform", "home", "cache"),
    [
        ("linux", "/home/u/.local/state/dflashd", "/home/u/.cache/dflashd"),
        (
            "darwin",
            "/home/u/Library/Application Support/dflashd",
            "/home/u/Library/Caches/dflashd",
        ),
    ],
)
def test_without_variables_the_system_says(
    monkeypatch: pytest.MonkeyPatch, platform: str, home: str, cache: str
) -> None:
    """Each system's usual places are the defaults."""
    monkeypatch.setattr(sys, "platform", platform)
    assert (runtime_dir(), state_dir(), cache_dir()) == (Path(home), Path(home), Path(cache))


def test_relative_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that would move with the working directory is refused by name."""
    monkeypatch.setenv("DFLASHD_RUNTIME_DIR", "run")
    with pytest.raises(DflashError, match="DFLASHD_RUNTIME_DIR must be an absolute") as refused:
        runtime_dir()
    assert refused.value.code is ErrorCode.bad_request


def test_relative_xdg_variable_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG path is ignored, as its specification says."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setattr(sys, "platform", "linux")
    assert runtime_dir() == Path("/s/dflashd")


def test_endpoints_are_three_sockets() -> None:
    """The three sockets of a runtime directory have fixed names."""
    endpoints = Endpoints(Path("/run/d"))
    assert endpoints.requests == "ipc:///run/d/requests.sock"
    assert endpoints.control == "ipc:///run/d/control.sock"
    assert endpoints.workers == "ipc:///run/d/workers.sock"
    assert [path.name for path in endpoints.paths] == [
        "requests.sock",
        "control.sock",
        "workers.sock",
    ]


@pytest.mark.parametrize(("length", "fits"), [(86, True), (87, False)])
def test_long_paths_are_refused_with_advice(length: int, fits: bool) -> None:
    """A socket path above 100 bytes is refused before any system call truncates it."""
    directory = Path("/" + "x" * (length - 1 - 2) + "ü")
    if fits:
        assert len(str(Endpoints(directory).paths[0]).encode()) == 100
    else:
        with pytest.raises(DflashError, match="set DFLASHD_RUNTIME_DIR") as refused:
            Endpoints(directory)
        assert refused.value.code is ErrorCode.bad_request


def test_home_that_cannot_be_found_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user nobody knows, or one without a home: an error of ours, not a traceback."""
    monkeypatch.setenv("DFLASHD_RUNTIME_DIR", "~no-such-user/x")
    with pytest.raises(DflashError, match="DFLASHD_RUNTIME_DIR"):
        runtime_dir()

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("DFLASHD_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DflashError, match="set HOME"):
        state_dir()
