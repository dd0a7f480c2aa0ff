"""``dflashctl cache``: what the models' prefix caches hold and have done, and how to empty one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import CacheBody
from ..exit_statuses import EXIT_OK, EXIT_USAGE
from .connection import asking
from .looks import write_json
from .screen import amount
from .table import Table
from .tables import show

if TYPE_CHECKING:
    from ...protocol.asker import Asker
    from ...protocol.sync import Client

_HEADS = ("MODEL", "STATE", "ENTRIES", "RAM", "DISK", "HITS", "MISSES", "CACHED TOKENS")


def cache(options: argparse.Namespace) -> int:
    """Show all caches or one, or empty one."""
    words: list[str] = options.words
    if len(words) > 2 or (len(words) == 2 and words[0] != "clear"):
        sys.stderr.write("dflashctl: say cache, cache MODEL or cache clear MODEL\n")
        return EXIT_USAGE
    with asking(options) as daemon:
        if len(words) == 2:
            state = daemon.clear_cache(words[1])
            write(options, words[1], state, f"the cache of {words[1]} is empty\n")
        elif words:
            state = daemon.cache(words[0])
            write(options, words[0], state, page(words[0], state))
        else:
            show_all(options, every(daemon))
    return EXIT_OK


def every(daemon: Asker | Client) -> dict[str, CacheBody]:
    """The caches of all models that are loaded; looking loads none."""
    found: dict[str, CacheBody] = {}
    for model in daemon.status().models:
        if model.loaded is None:
            continue
        try:
            found[model.name] = daemon.cache(model.name)
        except DflashError as error:
            # It was unloaded since we asked.
            if error.code not in (ErrorCode.not_found, ErrorCode.worker_lost):
                raise
    return found


def show_all(options: argparse.Namespace, caches: dict[str, CacheBody]) -> None:
    """One line for each."""
    if options.json:
        write_json(tuple({"model": name, **fields(body)} for name, body in caches.items()))
    elif not caches:
        sys.stdout.write("no model is loaded, so no cache is open\n")
    else:
        show(Table(_HEADS, [row(name, body) for name, body in caches.items()]))


def write(options: argparse.Namespace, name: str, body: CacheBody, text: str) -> None:
    """One cache, as JSON or as a text."""
    if options.json:
        write_json({"model": name, **fields(body)})
    else:
        sys.stdout.write(text)


def fields(body: CacheBody) -> dict[str, object]:
    """All fields, also those at their default."""
    return {name: getattr(body, name) for name in body.__struct_fields__}


def row(name: str, body: CacheBody) -> tuple[str, ...]:
    """One model's line."""
    return (
        name,
        body.state,
        str(body.ram_entries),
        f"{amount(body.ram_bytes, 'bytes')} of {amount(body.ram_limit_bytes, 'bytes')}",
        disk(body),
        str(sum(body.hits.values())),
        str(sum(body.misses.values())),
        str(body.cached_tokens),
    )


def disk(body: CacheBody) -> str:
    """The disk's use, or why there is none."""
    if body.disk == "on":
        return f"{amount(body.disk_bytes, 'bytes')} of {amount(body.disk_limit_bytes, 'bytes')}"
    return body.disk or "off"


def page(name: str, body: CacheBody) -> str:
    """One cache in full."""
    memory = f"{amount(body.ram_bytes, 'bytes')} of {amount(body.ram_limit_bytes, 'bytes')}"
    files = f"{body.disk_entries} files, {body.disk_queued} waiting, {body.disk_written} written"
    room = f"{body.evictions} snapshots, {body.disk_removed} files"
    facts = {
        "identity": f"{body.identity or '-'}, fingerprint {body.fingerprint or '-'}",
        "memory": f"{body.ram_entries} snapshots, {body.ram_tokens} tokens, {memory}",
        "disk": f"{disk(body)}; {files}",
        "hits": f"{counted(body.hits)}; {body.cached_tokens} tokens not computed",
        "misses": counted(body.misses),
        "stored": f"{body.stored}; not stored: {counted(body.not_stored)}",
        "given up": f"{room} for room; {body.superseded} replaced by longer ones",
        "not written": counted(body.disk_dropped),
        "bad files": counted(body.disk_bad_files),
    }
    lines = [f"{name}: {body.state}", *(f"  {key:<12} {fact}" for key, fact in facts.items())]
    return "\n".join(lines) + "\n"


def counted(counts: dict[str, int]) -> str:
    """Counts by name, in words."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
