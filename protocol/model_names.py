"""How a configuration names a model: a folder, a repository of the hub, or one brought along."""

from __future__ import annotations

from typing import Literal


def place_of(name: str) -> Literal["folder", "hub", "embedded"] | None:
    """Where what ``name`` stands for is kept; None: it is written like none of these.

    A bare ``a/b`` is always the hub's: what it means must not depend on where we were started.
    A revision behind ``@`` may hold slashes of its own (``owner/name@refs/pr/1``).
    """
    if name.startswith(("/", "./", "../", "~")) or name in (".", ".."):
        return "folder"
    slashes = name.partition("@")[0].count("/")
    return ("embedded", "hub")[slashes] if slashes < 2 else None
