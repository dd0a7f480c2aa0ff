"""A program that starts a daemon as its child, uses it, and waits to be killed.

``daemon_host.py FOLDER TARGET fork|alone``: says the pids of daemon and worker in one line. With
``fork`` a child of it holds all its pipes open and outlives it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dflashd.protocol import Daemon


def main(folder: Path, target: str, mode: str) -> None:
    """Start, generate without an end, report, wait."""
    run, config = folder / "run", folder / "config.toml"
    lines = ["[daemon]", f'runtime_dir = "{run}"', f'state_dir = "{folder / "state"}"']
    lines += ["[models.m]", f'target = "{target}"', "context_tokens = 4096"]
    config.write_text("\n".join(lines) + "\n")
    with (
        Daemon(config, runtime_dir=run, log=folder / "daemon.log") as daemon,
        daemon.client() as client,
    ):
        chunks = iter(client.generate("m", "x", max_tokens=4000, ignore_eos=True))
        next(chunks)
        (worker,) = client.status().workers
        heir = os.fork() if mode == "fork" else 0
        if mode == "fork" and heir == 0:
            time.sleep(60)
            os._exit(0)
        print(daemon.pid, worker.pid, heir, flush=True)  # noqa: T201
        for _ in chunks:
            pass
        time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
