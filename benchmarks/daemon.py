"""A real daemon for a benchmark, in a directory of its own."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dflashd.protocol import Client, Daemon
from dflashd.protocol.messages import LoadBody


@contextmanager
def running_daemon(
    folder: Path, models: Mapping[str, LoadBody], *, group: str | None = None
) -> Generator[Client]:
    """A daemon that serves ``models``, all in one worker if there is a ``group``; its client."""
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run"
    config = folder / "config.toml"
    lines = ["[daemon]", f'runtime_dir = "{run}"', f'state_dir = "{folder / "state"}"']
    for name, model in models.items():
        lines += [f'[models."{name}"]', f'target = "{model.target}"']
        lines += [f'draft = "{model.draft}"'] if model.draft else []
        lines += [f'group = "{group}"', 'placement = "strict"'] if group else []
    config.write_text("\n".join(lines) + "\n")
    daemon = Daemon(config, runtime_dir=run, log=folder / "daemon.log")
    with daemon, daemon.client() as client:
        yield client
