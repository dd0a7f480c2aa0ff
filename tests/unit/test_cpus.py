from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflashd.worker.machine.cpus import available_cpus


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("cpu_max", "cpus"),
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("900000 100000", 4),
        ("nonsense", 4),
    ],
)
def test_a_containers_quota_counts(tmp_path: Path, cpu_max: str, cpus: int):
    """A quota in the control group (version 2) limits the CPUs, rounded up, and never to none."""
    (tmp_path / "cpu.max").write_text(cpu_max + "\n")
    assert available_cpus(tmp_path) == cpus


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(("quota", "cpus"), [("-1", 4), ("300000", 3)])
def test_an_old_containers_quota_counts(tmp_path: Path, quota: str, cpus: int):
    """The same for version 1, where -1 is no quota."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert available_cpus(tmp_path) == cpus


@pytest.mark.usefixtures("four_cpus")
def test_without_a_control_group_affinity_counts(tmp_path: Path):
    """No control group: the CPUs this process may run on."""
    assert available_cpus(tmp_path / "none") == 4
