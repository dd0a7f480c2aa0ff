"""The test of the test: mistakes that others have made are found, soon, and in few steps."""

from __future__ import annotations

import pytest

from .bugs import BUGS, Bug, planted
from .running import replay, searched

pytestmark = pytest.mark.slow

SEED = 77
STEPS = 300_000
"""Some ten times what the best hidden one needs."""
FEW_STEPS = 60


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found_and_shrunk(bug: Bug) -> None:
    """Found soon; its script is short, fails again, and passes without the bug."""
    with planted(bug):
        failure = searched(SEED, STEPS)
        assert failure is not None, "not found"
        again = replay(failure.script)
        assert again is not None
        assert again.what == failure.what
        assert len(failure.script) <= FEW_STEPS, str(failure)
    assert replay(failure.script) is None
