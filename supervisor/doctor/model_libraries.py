"""What the worker's side sees: it has mlx, so it is another process, which may also die of it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import msgspec

from ...protocol.finding import Finding

LIMIT_S = 120.0
LAST_LINES = 3
COMMAND = (sys.executable, "-P", "-m", "dflashd.worker.doctor")


def look(command: tuple[str, ...] = COMMAND) -> Iterator[Finding]:
    """Its findings as they come; one more, with its last words, if it does not end well."""
    with tempfile.TemporaryFile() as words:
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=words, timeout=LIMIT_S, check=False
            )
            output, end = done.stdout, ended(done.returncode)
        except subprocess.TimeoutExpired as error:
            output, end = error.stdout or b"", f"did not answer within {LIMIT_S:.0f} s"
        words.seek(0)
        last = words.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
    for line in output.splitlines():
        # A library may print too, and a process that was ended may stop in the middle of a line.
        with contextlib.suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(line, type=Finding)
    if end:
        yield Finding(
            name="libraries",
            says=f"the process that looks at mlx {end}: {' | '.join(last) or 'without a word'}",
            level="problem",
            advice="workers fail alike: mend the installation, see the versions above",
        )


def ended(status: int) -> str:
    """How a process ended that did not end well."""
    if status == 0:
        return ""
    return f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
