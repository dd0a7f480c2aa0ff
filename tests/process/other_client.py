"""A client in a process of its own, that may be signalled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from .daemon_process import DaemonProcess

CLIENT = """
import json, pathlib, sys
from dflashd.protocol import Client
with Client(pathlib.Path(sys.argv[1]), timeout_s=30) as client:
    for chunk in client.generate(sys.argv[2], "x"):
        print(json.dumps(chunk.tokens), flush=True)
"""


@contextmanager
def other_client(daemon: DaemonProcess, model: str) -> Generator[subprocess.Popen[str]]:
    """Ask ``model`` from another process, which prints the tokens of each chunk."""
    command = [sys.executable, "-c", CLIENT, str(daemon.runtime_dir), model]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()
