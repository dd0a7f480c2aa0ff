"""The soak itself, for seconds instead of half an hour."""

from __future__ import annotations

import pytest

from .living import grown, live

pytestmark = pytest.mark.slow

SECONDS = 10.0


def test_short_soak_finds_nothing() -> None:
    """Random traffic beside kills: every request ends once, and nothing is left behind."""
    findings = live(SECONDS, seed=1, real=False, tell=lambda _: None)
    assert findings.problems == []
    assert findings.asked == sum(findings.ends.values()) > 0
    assert findings.faults


def test_growing_memory_is_a_finding() -> None:
    """A supervisor that grows steadily is found; one that grows only at first is not."""
    mib = 2**20
    assert grown([(30 + 3 * n) * mib for n in range(50)])
    assert not grown([30 * mib] * 10 + [60 * mib] * 40)
