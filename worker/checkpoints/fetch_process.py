"""The process that fetches: ``python -m …fetch_process PARENT SPEC``.

It tells how far it is and how it ended as lines of JSON on standard output, and dies with PARENT.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import msgspec

from ...protocol import lifeline
from ...protocol.errors import DflashError, ErrorCode
from ...protocol.paths import cache_dir
from ..errand import Progress
from ..throttle import Throttle
from .embedded import TARGETS
from .embedded_folder import embedded_folder
from .hub import hub_download

PERIOD_S = 0.05
"""Progress within one stage is told this often, and at its end."""


class Report(msgspec.Struct, tag="progress", frozen=True, kw_only=True):
    """How far it is."""

    stage: str
    done: int
    total: int
    unit: str


class Fetched(msgspec.Struct, tag="fetched", frozen=True, kw_only=True):
    """The last word: the folder."""

    folder: str


class Unfetched(msgspec.Struct, tag="unfetched", frozen=True, kw_only=True):
    """The last word: why there is no folder."""

    code: ErrorCode
    message: str


Told = Report | Fetched | Unfetched


def main(parent: int, spec: str) -> None:
    """Fetch and tell."""
    lifeline.hold(parent)
    tell = _teller(os.dup(1))
    os.dup2(2, 1)  # what a library prints goes where its warnings go
    tell(_fetched(spec, _reporter(tell)))


def _fetched(spec: str, progress: Progress) -> Fetched | Unfetched:
    target = TARGETS.get(spec)
    try:
        if target is None:
            return Fetched(folder=str(hub_download(spec, progress)))
        return Fetched(folder=str(embedded_folder(target, cache_dir(), progress)))
    except DflashError as error:
        return Unfetched(code=error.code, message=error.message)


def _teller(fd: int) -> Callable[[Told], None]:
    lock = threading.Lock()

    def tell(told: Told) -> None:
        line = msgspec.json.encode(told) + b"\n"
        with lock:  # downloads report from several threads
            while line:
                line = line[os.write(fd, line) :]

    return tell


def _reporter(tell: Callable[[Told], None]) -> Progress:
    throttle = Throttle(PERIOD_S)

    def report(stage: str, done: int, total: int, unit: str) -> None:
        if throttle.passes(stage, done, total):
            tell(Report(stage=stage, done=done, total=total, unit=unit))

    return report


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
