"""Folders whose contents we load as code."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_folder(folder: Path) -> Path:
    """``folder``, made if need be and writable for us alone; raises OSError if it is not ours."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if state.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user: set DFLASHD_CACHE_DIR")
    if stat.S_IMODE(state.st_mode) & 0o022:
        folder.chmod(0o700)
    return folder
