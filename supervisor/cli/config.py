"""``dflashctl reload``, ``config check`` and ``config schema``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.messages import ConfigBody, KeyChange, ModelChange, ReloadBody
from ..errors import ConfigError
from ..exit_statuses import EXIT_CONFIGURATION, EXIT_OK
from .connection import asking
from .looks import write_json
from .table import Table
from .tables import show

if TYPE_CHECKING:
    from ..config.configuration import Config


def reload(options: argparse.Namespace) -> int:
    """Have the daemon read its configuration again, and show what changes."""
    with asking(options) as daemon:
        found = daemon.reload(dry_run=options.dry_run)
    return told_of(found, as_json=options.json)


def config(options: argparse.Namespace) -> int:
    """Look at a file, or at the format, without the daemon's help where that is possible."""
    return schema() if options.action == "schema" else check(options)


def schema() -> int:
    """Print the JSON Schema."""
    from ..config.schema import text

    sys.stdout.write(text())
    return EXIT_OK


def check(options: argparse.Namespace) -> int:
    """Say whether a file can be used; with ``--diff``, what it would change."""
    from ..config.file import parse, read

    file: Path = options.file
    base_dir = file.resolve().parent
    try:
        text = read(file)
        config = parse(text, source=str(file), base_dir=base_dir)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIGURATION
    if not options.diff:
        return usable(file, config, as_json=options.json)
    given = ConfigBody(text=text, source=str(file), base_dir=str(base_dir))
    with asking(options) as daemon:
        found = daemon.reload(dry_run=True, config=given)
    return told_of(found, as_json=options.json)


def usable(file: Path, config: Config, *, as_json: bool) -> int:
    """Say that a file can be used."""
    if as_json:
        write_json({"file": str(file), "models": list(config.models)})
    else:
        sys.stdout.write(f"{file} can be used ({models(len(config.models))})\n")
    return EXIT_OK


def told_of(found: ReloadBody, *, as_json: bool) -> int:
    """Print what a reload changes, or would change."""
    if as_json:
        write_json(found)
    else:
        show(*page(found))
        sys.stderr.write(warning(found))
    return EXIT_OK


def page(found: ReloadBody) -> tuple[str | Table, ...]:
    """The changes for a person; what stays as it is only counts."""
    rows = [row(model) for model in found.models if model.change != "kept"]
    rows += [("[daemon]", "adjusted", told(key)) for key in found.daemon]
    unchanged = f"{models(sum(model.change == 'kept' for model in found.models))} unchanged"
    if not rows:
        when = " before dflashd is started again" if found.restart else ""
        return (f"{found.source}: nothing changes{when} ({unchanged})\n",)
    head = f"{found.source}: {'would change' if found.dry_run else 'in effect'} ({unchanged})\n"
    return head, Table(("MODEL", "CHANGE", "WHAT"), rows)


def row(model: ModelChange) -> tuple[str, str, str]:
    """One model's line."""
    words = [*map(told, model.keys), *filter(None, [model.reason])]
    return (model.name, model.change, "; ".join(words))


def models(count: int) -> str:
    """So many models."""
    return f"{count} model{'' if count == 1 else 's'}"


def told(key: KeyChange) -> str:
    """One key's change for a person."""
    return f"{key.key}: {key.before} → {key.after}"


def warning(found: ReloadBody) -> str:
    """What the operator must not take for changed."""
    return "".join(
        f"dflashctl: {told(key)} NOT in effect: it needs a restart of dflashd\n"
        for key in found.restart
    )
