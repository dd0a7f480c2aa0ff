"""Memory that may be taken: the machine's, and the container's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import mlx.nn as nn
import psutil
import pytest

from dflashd.worker.checkpoints.weights import FLOAT32_HEADROOM, fits_float32
from dflashd.worker.machine.free_memory import free_bytes


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a thousand bytes left."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))


def group(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return folder


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    """Cached pages of files are given up at need; a limit below what is held leaves nothing."""
    stat = "anon 70\nfile 30\nslab 5"
    two = group(tmp_path / "2", memory__max="300", memory__current="100", memory__stat=stat)
    assert free_bytes(two) == 300 - 100 + 30
    (two / "memory.max").write_text("20")
    assert free_bytes(two) == 0


def test_an_old_container_too(tmp_path: Path) -> None:
    """The first version of control groups names the same things otherwise."""
    files = {
        "memory__limit_in_bytes": "300",
        "memory__usage_in_bytes": "100",
        "memory__stat": "cache 1\ntotal_cache 30",
    }
    group(tmp_path / "1" / "memory", **files)
    assert free_bytes(tmp_path / "1") == 230


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    """No group, no limit, or more than the machine has: what the machine has left."""
    assert free_bytes(tmp_path) == 1000
    for limit in ("max", "9000"):
        folder = group(tmp_path / limit, memory__max=limit, memory__current="1", memory__stat="")
        assert free_bytes(folder) == 1000


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_a_quantised_layer_needs_its_dense_size(bits: int) -> None:
    """What float32 takes is reckoned for every number of bits, those that share words as well."""
    dense = nn.Linear(192, 64, bias=False)
    packed = nn.QuantizedLinear.from_linear(dense, group_size=32, bits=bits)
    scales_and_biases = 2 * 64 * 192 // 32
    needed = 4 * (192 * 64 + scales_and_biases)
    assert fits_float32(packed, int(needed * FLOAT32_HEADROOM))
    assert not fits_float32(packed, int(needed * FLOAT32_HEADROOM) - 1)
