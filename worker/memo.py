"""Small JSON files of what was found out once. Losing one costs time, never an answer."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def recall(file: Path) -> dict[str, Any]:
    """What ``file`` holds; nothing if it is missing, damaged or somebody else's."""
    try:
        mine = file.stat().st_uid == os.getuid()
        found: Any = json.loads(file.read_text()) if mine else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def remember(file: Path, facts: Mapping[str, object]) -> None:
    """Put ``facts`` in the place of what ``file`` held, in one step, or leave everything as it is:
    a full disk is no reason to fail.
    """
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(fd, "w") as stream:
                json.dump(facts, stream)
            os.replace(temporary, file)
        except OSError:
            os.unlink(temporary)
