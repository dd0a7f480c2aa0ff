"""What ``dflashctl status`` shows of a snapshot."""

from __future__ import annotations

import pytest

from dflashd.protocol.messages import ServiceStatus, SnapshotBody
from dflashd.supervisor.cli.looks import page


@pytest.mark.parametrize("state", ["running", "backoff"])
def test_a_service_says_why_it_is_as_it_is(state: str) -> None:
    """A reason is shown, also of one that runs again: it says why it had to be started anew."""
    service = ServiceStatus(
        name="http",
        state=state,
        pid=7,
        address="http://127.0.0.1:8383",
        restarts=1,
        reason="started again a short time ago, since its port is taken",
    )
    snapshot = SnapshotBody(
        instance="i",
        version="1",
        pid=1,
        uptime_s=1,
        state="serving",
        workers=(),
        models=(),
        counters={},
        services=(service,),
    )
    shown = [part for part in page(snapshot) if isinstance(part, str)]
    assert "http: started again a short time ago, since its port is taken\n" in shown
