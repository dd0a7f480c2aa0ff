"""The memory pool on machines and in containers, read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from dflashd.supervisor import pool

GIB = 2**30


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root folder with /proc and /sys as given."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def budget(root: Path, share: float = 0.5) -> int:
    return pool.linux_pool(share, 16 * GIB, root).budget_bytes


def test_a_machine_without_groups_offers_a_share_of_its_memory(tmp_path: Path) -> None:
    """Without limits the pool is the stated share of what is installed."""
    found = pool.linux_pool(0.5, 16 * GIB, machine(tmp_path, {}))
    assert found == pool.Pool(budget_bytes=8 * GIB, source="0.5 of physical memory")


CGROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/user.slice/app.service\n",
                f"{CGROUP}/memory.max": "max\n",
                f"{CGROUP}/user.slice/memory.max": f"{4 * GIB}\n",
                f"{CGROUP}/user.slice/app.service/memory.max": "max\n",
            },
            id="version 2, limit of an ancestor",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/app\n",
                f"{CGROUP}/app/memory.max": f"{6 * GIB}\n",
                f"{CGROUP}/app/memory.high": f"{4 * GIB}\n",
            },
            id="version 2, throttled before the limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", f"{CGROUP}/memory.max": f"{4 * GIB}\n"},
            id="version 2, container with a view of its own",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/../../other\n",
                f"{CGROUP}/memory.max": f"{4 * GIB}\n",
            },
            id="version 2, a group outside of the view",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,memory:/docker/0a1b\n2:pids:/x\n",
                f"{CGROUP}/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            },
            id="version 1, container that sees the host's path",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/a\n0::/\n",
                f"{CGROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
                f"{CGROUP}/memory/a/memory.limit_in_bytes": f"{4 * GIB}\n",
            },
            id="both versions, unlimited at the top",
        ),
    ],
)
def test_the_tightest_group_above_the_process_counts(tmp_path: Path, files: dict[str, str]) -> None:
    """A limit of the process's group or any ancestor is found, whatever the container hides."""
    found = pool.linux_pool(0.5, 16 * GIB, machine(tmp_path, files))
    assert found.budget_bytes == 2 * GIB
    assert found.source.startswith("0.5 of control group /")


def test_a_limit_beyond_the_machine_is_none(tmp_path: Path) -> None:
    """A group that may take more than is installed changes nothing."""
    files = {"proc/self/cgroup": "0::/\n", f"{CGROUP}/memory.max": f"{64 * GIB}\n"}
    assert budget(machine(tmp_path, files)) == 8 * GIB


@pytest.mark.parametrize(
    ("installed_gib", "wired_mib", "expected"),
    [
        (16, 0, 16 * GIB * 2 // 3),
        (64, 0, 64 * GIB * 3 // 4),
        (64, 20_000, 20_000 * 2**20),
        (64, 60_000, int(0.8 * 64 * GIB)),
    ],
)
def test_a_mac_offers_no_more_than_its_working_set(
    installed_gib: int, wired_mib: int, expected: int
) -> None:
    """Two thirds or three quarters, or what the administrator allows, and never over the share."""
    assert pool.mac_pool(0.8, installed_gib * GIB, wired_mib).budget_bytes == expected


def test_a_number_of_bytes_is_taken_as_it_is() -> None:
    """Who names bytes gets just these."""
    assert pool.memory_pool(0.1, 5 * GIB).budget_bytes == 5 * GIB


def test_this_machine_has_a_pool() -> None:
    """The real files give a budget between nothing and all that is installed."""
    found = pool.memory_pool(0.8)
    assert 2**26 < found.budget_bytes <= psutil.virtual_memory().total
