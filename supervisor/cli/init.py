"""``dflashctl init``: a first configuration for what is on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ...protocol.paths import cache_dir
from ..config.configuration import DaemonSection
from ..exit_statuses import EXIT_FAILED, EXIT_OK
from ..pool import memory_pool
from ..survey import models, pairs, written
from .looks import write_json
from .table import Table
from .tables import show

STANDARD_OUTPUT = Path("-")


def init(options: argparse.Namespace) -> int:
    """Look for models, pair them, write the file; never over another one unless told to."""
    file: Path = options.file
    if file.exists() and not options.force and file != STANDARD_OUTPUT:
        return exists(file)
    found, left_out = models.survey()
    made = pairs.pairs(found)
    pool = memory_pool(DaemonSection().memory_share)
    sections = written.sections(made, pool)
    waiting = pairs.unpaired(found, made)
    named = "FILE" if file == STANDARD_OUTPUT else str(file)
    text = written.text(sections, waiting, pool, file=named)
    if file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return EXIT_OK
    try:
        write(file, text, replace=options.force)
    except FileExistsError:
        return exists(file)
    except OSError as error:
        sys.stderr.write(f"dflashctl: {file} cannot be written: {error.strerror}\n")
        return EXIT_FAILED
    left_out += [models.LeftOut(spec=spec, reason=reason) for spec, reason in waiting]
    report(options, sections, left_out)
    return EXIT_OK


def exists(file: Path) -> int:
    """Say that a file is in the way."""
    sys.stderr.write(
        f"dflashctl: {file} is there already, and is left as it is\n"
        f"  → name another file, or replace it with --force; `dflashctl init -` only prints\n"
    )
    return EXIT_FAILED


def write(file: Path, text: str, *, replace: bool) -> None:
    """Write it whole or not at all. Raises FileExistsError, OSError."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        if replace:
            new.replace(file)
        else:
            os.link(new, file)  # fails where a file has come meanwhile
    finally:
        new.unlink(missing_ok=True)


def report(
    options: argparse.Namespace,
    sections: list[written.Section],
    left_out: list[models.LeftOut],
) -> None:
    """What the file holds, and what it does not."""
    file: Path = options.file
    if options.json:
        write_json(
            {
                "file": str(file),
                "models": tuple(
                    {
                        "name": one.name,
                        "target": one.pair.target,
                        "draft": one.pair.draft,
                        "why": one.pair.why,
                        "needed_bytes": written.needed_bytes(one.facts),
                        "fits": one.fits,
                        "other_drafts": (*one.pair.others, *one.pair.fitting),
                    }
                    for one in sections
                ),
                "left_out": tuple({"model": one.spec, "reason": one.reason} for one in left_out),
            }
        )
        return
    rows = [(one.name, one.pair.target, one.pair.draft or "-", note(one)) for one in sections]
    if rows:
        show(Table(("MODEL", "TARGET", "DRAFT", "NOTE"), rows))
    else:
        show(f"no model was found in the hub's cache nor in {cache_dir()}\n")
    show(*(f"left out: {one.spec}: {one.reason}\n" for one in left_out))
    show(f"{file} is written; next: dflashd serve --config {file}\n")


def note(section: written.Section) -> str:
    """What to know of a model at once."""
    if not section.fits:
        return "does not fit into memory: commented out"
    more = len(section.pair.others) + len(section.pair.fitting)
    return f"{more} more draft{'' if more == 1 else 's'} in its comments" if more else ""
