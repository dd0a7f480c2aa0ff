"""Buffers that mlx keeps for reuse are bounded; on Metal what is used stays in memory."""

from __future__ import annotations

from collections.abc import Generator

import mlx.core as mx
import pytest

from dflashd.worker.engine import memory

MIB = 2**20


@pytest.fixture(autouse=True)
def limit() -> Generator[None]:
    """Whatever a test sets, the process gets its own limit back."""
    mx.clear_cache()
    before = mx.set_cache_limit(64 * MIB)
    yield
    mx.set_cache_limit(before)


def spare_after_work() -> int:
    arrays = [mx.ones((MIB // 4,)) for _ in range(32)]
    mx.eval(arrays)
    del arrays
    return mx.get_cache_memory()


def test_spare_buffers_stay_within_the_limit() -> None:
    """Of 32 MiB that are given up no more stay with the process than it may keep."""
    assert spare_after_work() > 16 * MIB
    memory.limit_spare(8 * MIB)
    assert spare_after_work() <= 8 * MIB


def test_a_lower_limit_stays() -> None:
    """Where mlx by itself keeps less, nothing changes."""
    mx.set_cache_limit(8 * MIB)
    memory.limit_spare()
    assert spare_after_work() <= 8 * MIB


RECOMMENDS = {"max_recommended_working_set_size": 48 * 2**30}


@pytest.mark.parametrize(("device", "limits"), [(RECOMMENDS, [48 * 2**30]), ({}, [])])
def test_metal_keeps_what_it_recommends(
    device: dict[str, int], limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device says how much may be kept from being paged out; one that says nothing is left."""
    told: list[int] = []
    monkeypatch.setattr(mx, "device_info", lambda: device)
    monkeypatch.setattr(mx, "set_wired_limit", told.append)
    memory.keep_resident()
    assert told == limits
