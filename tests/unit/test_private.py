from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflashd.worker.machine.private import private_folder


def test_a_new_folder_is_ours_alone(tmp_path: Path):
    """A folder that is made here can be entered by nobody else."""
    folder = private_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_others_may_write_is_closed(tmp_path: Path):
    """What others could put libraries into is closed before anything is loaded from it."""
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    assert private_folder(open_folder).stat().st_mode & 0o022 == 0


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another user's folder is never loaded from."""
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path)
