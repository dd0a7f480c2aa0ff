"""How the words of a table look on a terminal."""

from __future__ import annotations

import re

COLOURED = frozenset({"STATE", "CHANGE", "LEVEL"})
"""Columns whose first word tells how well something is."""

STYLES = {
    **dict.fromkeys(("ready", "kept", "ok", "running", "listening"), "green"),
    **dict.fromkeys(("busy", "added", "adjusted"), "bold green"),
    **dict.fromkeys(("loading", "spawning", "registering", "starting", "waiting"), "yellow"),
    **dict.fromkeys(
        ("draining", "unloading", "stopping", "replaced", "note", "doubtful"), "yellow"
    ),
    **dict.fromkeys(("backoff", "lost", "fatal", "removed", "problem"), "bold red"),
    **dict.fromkeys(("stopped", "absent"), "dim"),
}
SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
"""The terminal's codes for the words of a style."""
NUMBER = re.compile(r"-|=\S+|[\d.,]+(?: \S+)?")


def style(state: str) -> str:
    """How a state looks; what is not known looks plain."""
    return STYLES.get(re.split(r"\W", state, maxsplit=1)[0].lower(), "")


def is_number(cells: list[str]) -> bool:
    """Whether a column stands better to the right."""
    return bool(cells) and all(map(NUMBER.fullmatch, cells))
