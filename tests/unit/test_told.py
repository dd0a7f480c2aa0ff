"""docs/architecture.md lists exactly the events and metrics there are."""

from __future__ import annotations

import re
from pathlib import Path

from dflashd.protocol.messages import Metrics
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.model_section import ModelSection
from dflashd.supervisor.core.effects import SendMetrics
from dflashd.supervisor.core.events import ClientSent, Peer
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.snapshot import Identity
from dflashd.supervisor.core.state import ENTERED
from dflashd.supervisor.logs.worker_logs import WorkerLogs
from dflashd.supervisor.watching.lookout import Lookout

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_metric_is_described(tmp_path: Path) -> None:
    """The document's metrics are the daemon's, labels included."""
    identity = Identity(instance="i", version="v", pid=1, started_at=0)
    core = Core(Limits(), {"a": ModelSection(target="t")}, identity, lambda: 1.0)
    asked = ClientSent(peer=Peer("control", b"p"), header=Metrics(id=bytes(16)))
    (effect,) = core.handle(asked, 1.0)
    assert isinstance(effect, SendMetrics)
    lookout = Lookout(Limits, WorkerLogs(tmp_path, worker_bytes=1, all_bytes=1))
    body = lookout.measured(effect.metrics, {"control": {"malformed": 1}}, 0, 0.0)
    described = dict(re.findall(r"`(dflashd_\w+)(?:\{([\w,]+)\})?`", DOCUMENT))
    assert set(described) == {family.name for family in body.families}
    for family in body.families:
        for sample in family.samples:
            assert ",".join(sample.labels) == described[family.name]


def test_every_event_is_described() -> None:
    """The document's events are those the core notes."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py")]
    note = re.compile(r'\bnote\(\s*"(\w+)"(?: if [^,]+ else "(\w+)")?')
    noted = {name for text in sources for pair in note.findall(text) for name in pair if name}
    table = DOCUMENT.split("| event | ", 1)[1].split("\n\n", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == noted | {
        *ENTERED.values()
    }
