"""A hook conflict on the whole stack: real backends of another package in a daemon's workers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dflashd.protocol import Client, Daemon, DflashError, ErrorCode
from dflashd.protocol.messages import ModelStatus

from ..thirdparty.site import install
from .families import HYBRIDS, make_member

pytestmark = pytest.mark.slow

TOKENS = (77, 3, 21, 40, 5, 99, 12, 7, 30, 61)
MODELS = {"first": ("qwen3_next", "field-alpha"), "second": ("qwen3_5", "field-beta")}
"""Two families whose attention is one class, and two backends that patch it."""

Start = Callable[[str], Client]


@pytest.fixture
def start(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    """Starts a daemon whose models share a group, with the placement given."""
    monkeypatch.setenv("PYTHONPATH", str(install(short_dir / "site")))
    run = short_dir / "run"

    def started(placement: str) -> Client:
        lines = [f'[daemon]\nruntime_dir = "{run}"\nstate_dir = "{short_dir / "state"}"\n']
        for name, (family, backend) in MODELS.items():
            make_member(short_dir / family, HYBRIDS[family])
            lines.append(
                f'[models.{name}]\ntarget = "{short_dir / family}"\nbackend = "{backend}"\n'
                f'group = "g"\nplacement = "{placement}"\n'
            )
        config = short_dir / "config.toml"
        config.write_text("".join(lines))
        daemon = Daemon(config, runtime_dir=run, log=short_dir / "daemon.log")
        return stack.enter_context(stack.enter_context(daemon).client())

    with ExitStack() as stack:
        yield started


def answer(client: Client, model: str) -> tuple[int, ...]:
    return tuple(client.generate(model, tokens=TOKENS, max_tokens=8).wait().tokens)


def status_of(client: Client, model: str) -> ModelStatus:
    return next(found for found in client.status().models if found.name == model)


def test_auto_placement_serves_both(start: Start) -> None:
    """The second model gets a worker of its own, which is said; the first one's output stays."""
    client = start("auto")
    alone = answer(client, "first")
    assert len(answer(client, "second")) == 8
    assert answer(client, "first") == alone
    first, second = status_of(client, "first"), status_of(client, "second")
    assert (first.worker, second.worker) == ("g", "second")
    assert "Qwen3NextAttention is hooked by field-alpha" in second.reason
    moved = [e for e in client.events() if e.name == "placement_changed"]
    assert [(e.fields["model"], e.fields["worker"]) for e in moved] == [("second", "second")]


def test_strict_placement_refuses_loudly(start: Start) -> None:
    """The second model fails with the guard's own words, at once and for good; the first serves."""
    client = start("strict")
    alone = answer(client, "first")
    for _ in range(2):
        with pytest.raises(DflashError, match="Qwen3NextAttention is hooked by field-alpha") as no:
            answer(client, "second")
        assert no.value.code in (ErrorCode.hook_conflict, ErrorCode.load_failed)
    assert answer(client, "first") == alone
    assert status_of(client, "second").state == "fatal"
