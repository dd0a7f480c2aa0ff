"""Installs packages the way pip leaves them: a module, and a ``.dist-info`` beside it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from . import field_backends

NAMES = {"field-alpha": "alpha", "field-beta": "beta", "broken": "broken", "hollow": "hollow"}


def install(site: Path, distribution: str = "field-backends") -> Path:
    """Write the package into ``site`` under the name ``distribution``."""
    site.mkdir(parents=True, exist_ok=True)
    shutil.copy(field_backends.__file__, site / "field_backends.py")
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = field_backends:{attribute}" for name, attribute in NAMES.items()]
    (info / "entry_points.txt").write_text("\n".join(["[dflashd.backends]", *lines]) + "\n")
    return site


@contextmanager
def on_path(site: Path) -> Generator[None]:
    """This process finds what is in ``site``."""
    sys.path.insert(0, str(site))
    try:
        yield
    finally:
        sys.path.remove(str(site))
        sys.modules.pop("field_backends", None)
